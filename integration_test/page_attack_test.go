package integration_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin/ui"
)

// attacks would create an element or attribute x7z, a link to another site, a header or a log line, or text that looks
// like other text.
var attacks = []string{
	`<x7z onload=alert(1)>`,
	`"><x7z>`,
	`'><x7z>`,
	`" x7z="`,
	`' x7z='`,
	"` x7z=`",
	`</title><x7z>`,
	`</script><script>alert(1)</script>`,
	`</pre><img src=x onerror=alert(1)>`,
	`<!--<x7z>`,
	`]]><x7z>`,
	`{{.}}{{template "x"}}`,
	`javascript:alert(1)//`,
	`//evil.example/`,
	`https://evil.example/`,
	`../../../etc/passwd`,
	`a&in=inbox&sure=yes&verb=discard`,
	`&lt;x7z&gt;`,
	`%3Cx7z%3E`,
	`\u003cx7z\u003e`,
	"x\r\nSet-Cookie: x7z=1\r\n\r\n<x7z>",
	"x\nlevel=ERROR msg=forged",
	"\x1b[2J\x1b]0;x7z\x07",
	"\u202egnp.exe\u2066\u200b\u00ad\ufeff",
	"\u0085\u2028\u2029\u007f\u009b",
	"+ADw-x7z+AD4-",
	"ﬁ\U000e0041\ud7ff\ufffd\U0001f600",
	`'; DROP TABLE outbox; --`,
	`$1 OR true`,
	`%`,
}

// chunks joins the attacks into fewer texts, because there are many pages to read. A link attack must begin a text.
func chunks() (list []string) {
	for _, x := range attacks {
		n := len(list) - 1
		if link := strings.HasPrefix(x, "javascript:") || strings.Contains(x, "//"); n < 0 || link || len(list[n]+x) > 120 {
			list = append(list, x)
			continue
		}
		list[n] += x
	}
	return list
}

// TestPageAttacks puts attacks into everything that comes from messages or operators, and reads all pages.
func TestPageAttacks(t *testing.T) {
	h := onPgx(t)
	a := newAdmin(t, h)
	for _, x := range chunks() {
		metadata, err := json.Marshal(map[string]string{x: x})
		require.NoError(t, err)
		h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata, attempts, last_error, dead_at, due_at)
			SELECT $1, $1, $1, convert_to($1, 'UTF8'), $2, 1, $1, CASE WHEN i = 1 THEN now() END, now() FROM generate_series(1, 2) i`, x, string(metadata))
		h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts, last_error, dead_at) VALUES ($1, $1, 1, $1, now())`, x)
		h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, key, state, payload, metadata, attempts, `+
			`last_error) VALUES ($1, $1, $1, $1, 'dead', convert_to($1, 'UTF8'), $2, 1, $1)`, x, string(metadata))
		h.exec(t, `INSERT INTO outbox_forwarders (id, name, scope, topics, expires_at) VALUES (gen_random_uuid(), $1, $1, `+
			`array[$1], now() + interval '1 minute')`, x)
		require.NoError(t, a.As(x).Pause(t.Context(), x, x))
	}
	for _, access := range []ui.Access{{}, {Act: true, Payloads: true, Actor: attacks[0] + attacks[22] + attacks[23]}} {
		s := newSite(t, h, access)
		todo, done := []string{
			"", "errors", "errors?in=inbox", "errors?in=queue", "messages", "messages?state=failing", "messages?in=inbox",
			"messages?in=queue", "audit",
		}, map[string]bool{}
		for len(todo) > 0 { // all links on the pages
			path := todo[0]
			todo = todo[1:]
			if done[path] {
				continue
			}
			done[path] = true
			got := s.get(path) // checks the reply
			want := http.StatusOK
			if strings.Contains(path, "verb=redrive") { // there is no dead letter for these
				want = http.StatusConflict
			}
			require.Equal(t, want, got.status, path)
			for _, e := range elements(t, got.body, "a") {
				if href := e["href"]; strings.HasPrefix(href, "message?") || strings.HasPrefix(href, "act?") {
					todo = append(todo, href)
				}
			}
		}
		assert.Greater(t, len(done), 3*len(chunks()), "all messages were read")
		s.get("message?id=1").says(t, "the attack is still legible", `<x7z onload=alert(1)>`)
		assert.Empty(t, s.log.take())
	}
}

// A refused parameter hides the following ones from the page, so such parameters are attacked one by one, and all
// others together.
var (
	refusable = []string{"in", "state", "consumer", "id", "after", "before", "page", "verb", "done"}
	readable  = []string{"topic", "key", "group", "error", "all", "from", "sure", "token"}
)

// attack puts a text into all parameters of a page.
func (s *site) attack(page, x string) {
	s.t.Helper()
	get := func(names ...string) int {
		q := url.Values{}
		switch page {
		case "act":
			q.Set("verb", "discard")
		case "message":
			q.Set("id", "1")
		}
		for _, name := range names {
			q.Set(name, x)
		}
		got := s.get(page + "?" + q.Encode())
		assert.Contains(s.t, []int{200, 400, 404}, got.status, page+"?"+q.Encode())
		assert.NotContains(s.t, got.header, "X7z")
		return got.status
	}
	others := append([]string{x}, readable...)
	if get(append(others, refusable...)...) == http.StatusOK {
		return
	}
	for _, name := range refusable {
		get(name)
	}
	if get(others...) != http.StatusOK {
		for _, name := range others {
			get(name)
		}
	}
}

// TestPageAttackedByQuery puts attacks into each parameter of each page.
func TestPageAttackedByQuery(t *testing.T) {
	extended(t)
	h := onPgx(t)
	fillOutbox(t, h, 12)
	s := newSite(t, h, ui.Access{Act: true, Payloads: true, Actor: "alice"})
	before := tableStates(t, h)
	for _, x := range append(chunks(), "\x00", "\xff\xfe", strings.Repeat("x", 5000)) {
		for _, page := range []string{"", "errors", "messages", "message", "audit", "act"} {
			s.attack(page, x)
		}
		r := s.get(url.PathEscape(x))
		assert.Contains(t, []int{200, 404}, r.status, "as a path: %q", x)
		for name := range r.header {
			assert.NotContains(t, name, "X7z")
		}
	}
	assert.Equal(t, before, tableStates(t, h))

	// The origin of an action must be one of our words, and the message after it must not come from the address.
	for _, x := range chunks() {
		got := s.post(url.Values{"verb": {"pause"}, "topic": {x}, "from": {x}, "reason": {x}, "sure": {"yes"}})
		require.Equal(t, http.StatusSeeOther, got.status, "%q", x)
		u, err := url.Parse(got.header.Get("Location"))
		require.NoError(t, err)
		assert.Empty(t, u.Scheme+u.Host, "%q", x)
		assert.Equal(t, http.StatusOK, s.get(got.header.Get("Location")).status)
	}
	assert.Empty(t, s.log.take(), "no attack is logged")
}
