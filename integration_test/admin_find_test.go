package integration_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
)

// foundAll goes through all pages of a search and returns table and id of what they have.
func foundAll(t testing.TB, a *admin.Admin, what string, limit int) (all []string) {
	t.Helper()
	for p := (admin.Page{Limit: limit}); ; {
		l, err := a.Find(t.Context(), what, p)
		require.NoError(t, err)
		require.LessOrEqual(t, len(l.Messages), limit)
		for _, m := range l.Messages {
			all = append(all, m.In.String()+" "+m.ID+" "+string(m.State))
		}
		if l.Next == "" {
			assert.Zero(t, l.Progress, "all was searched")
			return all
		}
		p.After = l.Next
	}
}

// TestFind finds one message in all tables, by all of its names, page by page.
func TestFind(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 3000)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, metadata) VALUES ('letter', 'dead_letters', '', '{"uuid_poisoned": "u40"}')`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, processed_at)
		SELECT 'shop/h' || i, CASE i % 500 WHEN 7 THEN 'u40' ELSE 'm' END, now() FROM generate_series(1, 2500) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, key, state)
		SELECT 'from' || i, CASE i % 500 WHEN 7 THEN 'u40' ELSE 'm' || i END, 'orders', 'k' || i, 'dead' FROM generate_series(1, 1500) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, key, state) VALUES ('shop', 'own key', 'orders', 'own key', 'dead')`)
	a := newAdmin(t, h)
	everywhere := []string{
		"inbox shop/h1007:u40 done", "inbox shop/h1507:u40 done", "inbox shop/h2007:u40 done", "inbox shop/h507:u40 done",
		"inbox shop/h7:u40 done", "outbox 3001 ready", "outbox 40 done", "queue from1007:u40 dead", "queue from507:u40 dead",
		"queue from7:u40 dead",
	}
	for _, limit := range []int{1, 3, 50, 1000} {
		got := foundAll(t, a, "u40", limit)
		slices.Sort(got)
		assert.Equal(t, everywhere, got, "limit %d", limit)
	}
	for what, want := range map[string][]string{
		"u2999":        {"outbox 2999 discarded"},
		"40":           {"outbox 40 done"},
		"shop/h7:u40":  {"inbox shop/h7:u40 done"},
		"from507:u40":  {"queue from507:u40 dead"},
		"k12":          {"queue from12:m12 dead"},
		"own key":      {"queue shop:own key dead"},
		"nothing":      nil,
		"a:b":          nil,
		"' OR true --": nil,
	} {
		assert.Equal(t, want, foundAll(t, a, what, 50), what)
	}
	key := foundAll(t, a, "key-6", 7)
	assert.Len(t, key, int(h.count(t, "SELECT count(*) FROM outbox WHERE key = 'key-6'")))
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(key))), len(key), "none twice")

	for _, what := range []string{"", "a\x00b", "a\xff", string(make([]byte, 5000))} {
		_, err := a.Find(t.Context(), what, admin.Page{})
		assert.ErrorIs(t, err, admin.ErrInvalid)
	}
	_, err := a.Find(t.Context(), "u40", admin.Page{After: "nonsense"})
	assert.ErrorIs(t, err, admin.ErrInvalid)

	page := newSite(t, h, ui.Access{})
	got := page.findAll("q=+u40+")
	require.Equal(t, http.StatusOK, got.status, got.body)
	got.says(t, "find", "shop/h1007:u40", "from7:u40", "its dead letter", "done", "dead", "ready")
	page.findAll("q=nothing").says(t, "find nothing", "Not found.")
	page.get("find").says(t, "find", "Find a message")

	outboxctl := ctl{t: t, url: h.url}
	one := outboxctl.run("find", "u2999")
	assert.Equal(t, 0, one.code, one.err)
	assert.Regexp(t, `(?m)^found in +the outbox, discarded for \d`, one.out)
	assert.Regexp(t, `(?m)^id +2999$`, one.out)
	many := 0
	for next := []string{}; next != nil; { // a page is what was found in about a second
		var list admin.List
		said := outboxctl.run(append([]string{"find", "u40", "-o", "json"}, next...)...)
		require.NoError(t, json.Unmarshal([]byte(said.out), &list))
		many += len(list.Messages)
		if next = nil; list.Next != "" {
			next = []string{"--page", list.Next}
		}
	}
	assert.Equal(t, len(everywhere), many)
	none := outboxctl.run("find", "nothing")
	assert.Contains(t, none.out, "not found")
	assert.Equal(t, 1, none.code)
	assert.Equal(t, 2, outboxctl.run("find").code)
	assert.Equal(t, 2, outboxctl.run("find", "u40", "--page", "nonsense").code)
}

var goOn = regexp.MustCompile(`href="([^"]*)" rel="next"`)

// findAll goes on until all was looked through: a page is what was found in about a second. Its body is that of all.
func (s *site) findAll(query string) reply {
	s.t.Helper()
	all := s.get("find?" + query)
	for next := goOn.FindStringSubmatch(all.body); next != nil; {
		more := s.get("find" + html.UnescapeString(next[1][strings.Index(next[1], "?"):]))
		require.Equal(s.t, http.StatusOK, more.status, more.body)
		all.body += more.body
		next = goOn.FindStringSubmatch(more.body)
	}
	return all
}

// TestListProgress lists page by page and checks how far each page says that it has come.
func TestListProgress(t *testing.T) {
	h := onPgx(t)
	const rows = 1000
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, created_at, published_at)
		SELECT 'u' || i, 'orders', 'k' || i % 100, '', now() - (2000 - i) * interval '1 minute', now() FROM generate_series(1, $1::int) i`, rows)
	a := newAdmin(t, h)
	done := admin.Filter{States: []admin.State{admin.Done}, Key: "k50"}
	next, share := "", 0.0
	for i := range 10 {
		l, err := a.List(t.Context(), done, admin.Page{Limit: 1, After: next})
		require.NoError(t, err)
		require.Len(t, l.Messages, 1)
		m := l.Messages[0]
		assert.Equal(t, fmt.Sprint(950-100*i), m.ID)
		require.NotEmpty(t, l.Next)
		assert.Equal(t, m.ID, l.Progress.ID)
		assert.WithinDuration(t, m.CreatedAt, l.Progress.WrittenAt, 0)
		assert.InDelta(t, float64(51+100*i)/rows, l.Progress.Share, 1e-9)
		assert.Greater(t, l.Progress.Share, share)
		next, share = l.Next, l.Progress.Share
	}
	l, err := a.List(t.Context(), done, admin.Page{Limit: 1, After: next})
	require.NoError(t, err)
	assert.Equal(t, &admin.List{Messages: []admin.Message{}}, l)
}
