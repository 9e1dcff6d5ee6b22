package integration_test

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// tableStates counts the rows of the three tables by state.
func tableStates(t testing.TB, h handle) string {
	t.Helper()
	var all []string
	for table, state := range map[string]string{
		"outbox o": sqltext.OutboxState, "inbox i": sqltext.InboxState, "inbox_queue q": sqltext.QueueState,
	} {
		all = append(all, column[string](t, h, "SELECT '"+table+"' || ' ' || "+state+" || ' ' || count(*) FROM "+
			table+" GROUP BY "+state+" ORDER BY 1")...)
	}
	all = append(all, column[string](t, h, "SELECT topic || reason FROM outbox_topics")...)
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// TestPageActs previews and confirms every action, by links from the pages.
func TestPageActs(t *testing.T) {
	h := onPgx(t)
	groups := func(in string) string {
		table := admin.Outbox
		require.NoError(t, table.UnmarshalText([]byte(in)))
		list, err := newAdmin(t, h).ErrorGroups(t.Context(), admin.Filter{In: table})
		require.NoError(t, err)
		return list[0].ID
	}
	for _, c := range []struct {
		page, verb, has string // the page has the link to the preview, which contains has
		asks            string
		count           string // counts the resulting rows
		done            int
		back, says      string
	}{
		{
			"messages?state=dead", "requeue", "all=yes", "Requeue 20 messages?",
			"outbox o WHERE s = 'ready' AND attempts = 1 AND due_at <= now() AND id % 6 = 3", 20, "messages",
			"Requeued 20 messages",
		},
		{
			"messages?state=dead&topic=topic-3", "discard", "topic=topic-3", "Discard 3 messages?",
			"outbox o WHERE s = 'discarded' AND last_error LIKE 'discarded by alice: it''s over; before: %'", 3, "messages",
			"Discarded 3 messages",
		},
		{
			"messages?state=failing&key=key-2", "skip", "key=key-2", "Skip 1 message?",
			"outbox o WHERE s = 'discarded' AND last_error LIKE 'skipped by alice: it''s over%'", 1, "messages",
			"Skipped 1 message.",
		},
		{
			"messages?state=done", "replay", "", "Replay 20 messages?", "outbox o WHERE s = 'ready' AND id % 6 = 4", 20,
			"messages", "Replayed 20 messages",
		},
		{
			"message?id=3", "requeue", "id=3", "Requeue 1 message?", "outbox o WHERE s = 'ready' AND id = 3", 1, "message",
			"Requeued 1 message.",
		},
		{
			"messages?in=inbox&state=failing", "discard", "", "Discard 10 messages?",
			"inbox i WHERE s = 'discarded' AND last_error LIKE 'discarded by alice%'", 10, "messages", "Discarded 10",
		},
		{
			"messages?in=queue", "requeue", "", "Requeue 10 messages?",
			"inbox_queue q WHERE s <> 'dead' AND attempts = 0 AND substr(message_id, 2)::int % 6 = 3", 10, "messages",
			"Requeued 10",
		},
		{
			"message?in=queue&id=shop%253A0:m3", "discard", "", "Discard 1 message?",
			"inbox_queue q WHERE s = 'done' AND message_id = 'm3'", 1, "message", "Discarded 1 message.",
		},
		{
			"errors", "requeue", "group=", "Requeue 20 messages?",
			"outbox o WHERE s = 'ready' AND attempts = 1 AND due_at <= now()", 20, "errors", "Requeued 20",
		},
		{
			"errors?in=queue", "retry_now", "", "Retry now 10 messages?",
			"inbox_queue q WHERE s = 'failing' AND due_at <= now()", 10, "errors", "Retried 10",
		},
		{
			"", "pause", "topic=topic-4", "Pause topic-4?",
			"outbox_topics q WHERE topic = 'topic-4' AND reason = 'alice: it''s over'", 1, "overview", "Paused topic-4",
		},
	} {
		t.Run(c.verb+" on "+c.page, func(t *testing.T) {
			h.exec(t, "TRUNCATE outbox, inbox, inbox_queue, outbox_topics RESTART IDENTITY")
			fillOutbox(t, h, 120)
			fillInbox(t, h, 40)
			fillQueue(t, h, 60)
			s := newSite(t, h, ui.Access{Actor: "alice", Act: true})
			s.t = t
			before := tableStates(t, h)
			var link string
			for _, a := range elements(t, s.get(c.page).body, "a") {
				if strings.HasPrefix(a["href"], "act?") && strings.Contains(a["href"], "verb="+c.verb) &&
					strings.Contains(a["href"], c.has) {
					link = a["href"]
					break
				}
			}
			require.NotEmpty(t, link, "the page has no link to it")
			if strings.HasPrefix(c.page, "errors") {
				in, _, _ := strings.Cut(strings.TrimPrefix(c.page, "errors?in="), "&")
				if in == "errors" {
					in = "outbox"
				}
				assert.Contains(t, s.get(c.page).body, groups(in))
			}
			s.get(link).says(t, link, c.asks)
			s.get(link + "&sure=yes") // a GET never acts
			require.Equal(t, before, tableStates(t, h))
			audited := h.count(t, "SELECT count(*) FROM outbox_audit")

			got := s.sure(link, "it's over")
			require.Equal(t, http.StatusSeeOther, got.status, textOf(t, got.body))
			state := map[bool]string{true: "'' AS s", false: ""}[c.verb == "pause"]
			for name, text := range map[string]string{
				"outbox o": sqltext.OutboxState, "inbox i": sqltext.InboxState, "inbox_queue q": sqltext.QueueState,
			} {
				if strings.HasPrefix(c.count, name) {
					state = text + " AS s"
				}
			}
			table, where, _ := strings.Cut(c.count, " WHERE ")
			assert.Equal(t, c.done, h.count(t, "SELECT count(*) FROM (SELECT *, "+state+" FROM "+table+") x WHERE "+where))
			require.Equal(t, audited+1, h.count(t, "SELECT count(*) FROM outbox_audit"))
			assert.Equal(t, "alice "+c.verb+" it's over",
				value[string](t, h, "SELECT actor || ' ' || action || ' ' || reason FROM outbox_audit ORDER BY id DESC LIMIT 1"))
			to := got.header.Get("Location")
			page := strings.TrimPrefix(strings.SplitN(to, "?", 2)[0], "./")
			if page == "" {
				page = "overview"
			}
			assert.Equal(t, c.back, page)
			s.get(to).says(t, to, c.says)
			if c.verb == "pause" {
				s.get(to).says(t, to, "A topic is paused: topic-4", "Resume topic-4")
				s.get(s.sure("act?verb=resume&topic=topic-4", "").header.Get("Location")).says(t, "resume", "Resumed topic-4")
				assert.Zero(t, h.count(t, "SELECT count(*) FROM outbox_topics"))
			}
		})
	}
}

// TestPageActsOnChosen selects messages in a list.
func TestPageActsOnChosen(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 60)
	s := newSite(t, h, ui.Access{Actor: "alice", Act: true})
	form := url.Values{"choice": {"yes"}, "filter": {"state=dead"}, "from": {"messages"}, "verb": {"requeue"}}
	asked := s.post(form)
	assert.Equal(t, http.StatusBadRequest, asked.status)
	asked.says(t, "nothing is selected", "no message is selected")
	form["chosen"] = []string{"3", "15", "4"}
	asked = s.post(form)
	asked.says(t, "three are selected, one of them is not dead", "Requeue 2 messages?", "3 selected")
	assert.Equal(t, map[string]int{"dead": 2, "done": 1}, h.states(t, "id IN (3, 15, 4)"))
	for _, input := range elements(t, asked.body, "input") { // the form's filter names the selected messages
		form[input["name"]] = []string{input["value"]}
	}
	assert.Equal(t, http.StatusSeeOther, s.post(form).status)
	assert.Equal(t, map[string]int{"ready": 2, "done": 1}, h.states(t, "id IN (3, 15, 4)"))
	assert.Equal(t, 8, h.states(t, "true")["dead"])
	form.Set("verb", "requeue")
	form.Del("sure")
	s.post(form).says(t, "again", "Nothing to do")
	form.Set("verb", "discard")
	form.Set("sure", "yes")
	form["chosen"] = []string{"9"}
	got := s.post(form)
	assert.Equal(t, http.StatusBadRequest, got.status)
	got.says(t, "no reason", "Reason is missing")
	for name, change := range map[string]url.Values{
		"no such act": {"verb": {"drop"}}, "no act": {"verb": {""}}, "no table": {"filter": {"in=x"}},
		"not for the table":     {"filter": {"in=inbox&state=done"}, "verb": {"replay"}, "chosen": {"a:b"}},
		"a wrong state":         {"filter": {"state=done"}, "verb": {"discard"}, "reason": {"x"}},
		"a pause without topic": {"verb": {"pause"}}, "an odd id": {"chosen": {"x"}}, "a broken id": {"chosen": {"%"}},
		"a broken filter": {"filter": {"a;b"}}, "NUL": {"verb": {"requeue"}, "reason": {"\x00"}},
	} {
		f := url.Values{}
		for k, v := range form {
			f[k] = v
		}
		for k, v := range change {
			f[k] = v
		}
		assert.Equal(t, http.StatusBadRequest, s.post(f).status, name)
	}
	big := url.Values{"id": {strings.Repeat("1", 1<<20)}}
	assert.Equal(t, http.StatusBadRequest, s.post(big).status)
	logged := s.log.take()
	require.Len(t, logged, 1, "only the act that succeeded")
	assert.Contains(t, logged[0], "operator act ")
	assert.Contains(t, logged[0], "actor=alice")
}

// TestPageAsksAgain has more messages than one action changes.
func TestPageAsksAgain(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, attempts, last_error, dead_at) SELECT i, 'many', '', 10, `+
		`'away', now() FROM generate_series(1, 10050) i`)
	s := newSite(t, h, ui.Access{Actor: "alice", Act: true})
	const link = "act?verb=requeue&state=dead&topic=many&from=messages"
	asked := s.get(link)
	assert.Regexp(t, `Requeue (the oldest|up to) 10,000 messages\?`,
		textOf(t, asked.body)) // a busy machine stops counting before 10,000
	asked.says(t, "more than are counted", "At most 10,000")
	got := s.sure(link, "")
	require.Equal(t, map[string]int{"ready": 10000, "dead": 50}, h.states(t, "true"))
	to := s.get(got.header.Get("Location"))
	to.says(t, "the first part", "Requeued 10,000 messages.", "Continue with the next ones")
	for _, a := range elements(t, to.body, "a") {
		if strings.HasPrefix(a["href"], "act?") && strings.Contains(a["href"], "from=messages") &&
			strings.Contains(to.body, "Continue with the next ones") {
			s.get(a["href"]).says(t, "the rest", "Requeue 50 messages?")
			break
		}
	}
}

// TestPageRefuses sends requests that must have no effect, and some that must show nothing.
func TestPageRefuses(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 60)
	before := tableStates(t, h)
	yes := url.Values{"verb": {"requeue"}, "all": {"yes"}, "sure": {"yes"}, "preview": {"outbox.1000.0.more"}}
	t.Run("read-only users", func(t *testing.T) {
		s := newSite(t, h, ui.Access{Actor: "bob", Payloads: true})
		s.cookie = &http.Cookie{Name: "outbox_token", Value: strings.Repeat("x", 26)}
		assert.Equal(t, http.StatusForbidden, s.post(yes).status)
		assert.Equal(t, http.StatusForbidden, s.get("act?verb=requeue&all=yes").status)
	})
	t.Run("by default", func(t *testing.T) {
		s := newGuardedSite(t, h, nil)
		s.cookie = &http.Cookie{Name: "outbox_token", Value: strings.Repeat("x", 26)}
		assert.Equal(t, http.StatusForbidden, s.post(yes).status)
		assert.Equal(t, http.StatusOK, s.get("").status)
		s.get("message?id=3").says(t, "payloads", "Payloads are not shown")
	})
	t.Run("unknown users", func(t *testing.T) {
		s := newGuardedSite(t, h, func(*http.Request) (ui.Access, error) {
			return ui.Access{Act: true, Actor: "x", Payloads: true}, errors.New("secret\nreason")
		})
		s.cookie = &http.Cookie{Name: "outbox_token", Value: strings.Repeat("x", 26)}
		for _, path := range []string{
			"", "errors", "messages", "message?id=3", "audit", "act?verb=requeue&all=yes", "nothing",
		} {
			got := s.get(path)
			assert.Equal(t, http.StatusForbidden, got.status, path)
			assert.NotContains(t, got.body, "secret")
			assert.NotContains(t, got.body, "topic-")
		}
		assert.Equal(t, http.StatusForbidden, s.post(yes).status)
		for _, line := range s.log.take() {
			assert.NotContains(t, line, "\n")
		}
		assert.Equal(t, http.StatusOK, s.get("ready").status)
		assert.Equal(t, http.StatusOK, s.get("style.css").status)
	})
	t.Run("users without a name", func(t *testing.T) {
		got := newSite(t, h, ui.Access{Act: true}).post(yes)
		assert.Equal(t, http.StatusForbidden, got.status)
		got.says(t, "no actor", "Actor")
	})
	t.Run("actions without a confirmation", func(t *testing.T) {
		s := newSite(t, h, ui.Access{Act: true, Actor: "alice"})
		form := maps.Clone(yes)
		for _, tried := range []string{
			"", "x", "inbox.1.2.more", "outbox.1.2", "outbox.99999999999999999999.0.more", "outbox.1.2.<script>",
		} {
			form.Set("preview", tried)
			assert.Equal(t, http.StatusBadRequest, s.post(form).status, tried)
		}
		form.Del("preview")
		assert.Equal(t, http.StatusBadRequest, s.post(form).status)
	})
	t.Run("other sites", func(t *testing.T) {
		s := newSite(t, h, ui.Access{Act: true, Actor: "alice"})
		s.get("")
		token := s.cookie.Value
		assert.True(t, s.cookie.HttpOnly)
		assert.Equal(t, http.SameSiteStrictMode, s.cookie.SameSite)
		assert.Equal(t, s.cookie.Value, func() string {
			s.get("messages")
			return s.cookie.Value
		}(), "other tabs keep their tokens")
		for name, c := range map[string]struct {
			header      map[string]string
			form, token string
			cookie      string
		}{
			"another site":           {map[string]string{"Sec-Fetch-Site": "cross-site"}, token, token, token},
			"another host of ours":   {map[string]string{"Sec-Fetch-Site": "same-site"}, token, token, token},
			"another origin":         {map[string]string{"Origin": "https://evil.example"}, token, token, token},
			"no origin":              {map[string]string{"Origin": "null"}, token, token, token},
			"no token":               {map[string]string{"Sec-Fetch-Site": "same-origin"}, "", "", token},
			"a wrong token":          {map[string]string{"Sec-Fetch-Site": "same-origin"}, token[1:] + "x", "", token},
			"no cookie":              {map[string]string{"Sec-Fetch-Site": "same-origin"}, token, "", ""},
			"neither":                {map[string]string{"Sec-Fetch-Site": "same-origin"}, "", "", ""},
			"both short":             {map[string]string{"Sec-Fetch-Site": "same-origin"}, "x", "", "x"},
			"a token in the address": {map[string]string{"Sec-Fetch-Site": "same-origin"}, "", token, token},
		} {
			form := url.Values{"token": {c.form}}
			for k, v := range yes {
				form[k] = v
			}
			r := httptest.NewRequest(http.MethodPost, "/ops/act?token="+c.token, strings.NewReader(form.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			for k, v := range c.header {
				r.Header.Set(k, v)
			}
			if c.cookie != "" {
				r.AddCookie(&http.Cookie{Name: "outbox_token", Value: c.cookie})
			}
			assert.Equal(t, http.StatusForbidden, s.send(r).status, name)
		}
	})
	t.Run("other methods", func(t *testing.T) {
		s := newSite(t, h, ui.Access{Act: true, Actor: "alice"})
		for _, method := range []string{
			http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, "TRACE", "x",
		} {
			for _, path := range []string{"", "act", "messages"} {
				assert.Equal(t, http.StatusMethodNotAllowed,
					s.send(httptest.NewRequest(method, "/ops/"+path+"?verb=requeue&all=yes&sure=yes", nil)).status, method+path)
			}
		}
		assert.Equal(t, http.StatusMethodNotAllowed,
			s.send(httptest.NewRequest(http.MethodPost, "/ops/messages", nil)).status)
		assert.Equal(t, http.StatusOK, s.send(httptest.NewRequest(http.MethodHead, "/ops/", nil)).status)
	})
	assert.Equal(t, before, tableStates(t, h))
	assert.Zero(t, h.count(t, "SELECT count(*) FROM outbox_audit"))
}
