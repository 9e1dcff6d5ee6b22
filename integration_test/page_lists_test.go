package integration_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
)

// fillInbox writes n messages of all states.
func fillInbox(t testing.TB, h handle, n int) {
	t.Helper()
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error, processed_at, dead_at)
		SELECT 'shop/book', 'm' || i, now() - i * interval '1 second', i % 4, CASE WHEN i % 4 > 0 THEN 'order ' || i || ' is bad' END,
		       CASE i % 4 WHEN 0 THEN now() WHEN 3 THEN now() END, CASE i % 4 WHEN 1 THEN now() WHEN 3 THEN now() END
		  FROM generate_series(1, $1::int) i`, n)
}

// TestPages reads all pages of filled tables.
func TestPages(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 600)
	fillInbox(t, h, 40)
	fillQueue(t, h, 120)
	a := newAdmin(t, h)
	require.NoError(t, a.Pause(t.Context(), "topic-3", "they asked us to"))
	groups, err := a.ErrorGroups(t.Context(), admin.Filter{})
	require.NoError(t, err)
	reads, acts := newSite(t, h, ui.Access{}), newSite(t, h, ui.Access{Actor: "alice", Act: true, Payloads: true})
	for path, says := range map[string][]string{
		"": {
			"No forwarder is running, and", "A topic is paused: topic-3", "they asked us to",
			"50 messages of the outbox are dead", "10 messages of the inbox are dead", "20 messages of the queue are dead",
			"topic-6", "No forwarder has run",
		},
		"errors":                               {"order <n> not found", `Broker "…" away`, "topic-0", "Dead 50 Failing 50"},
		"errors?in=inbox":                      {"order <n> is bad", "shop/book", "Dead 10 Failing 10"},
		"errors?in=queue":                      {"order <n> is bad", "Dead 20 Failing 20"},
		"messages":                             {"597", "topic-2", "key-47", "order 597 not found", "Next page"},
		"messages?state=failing":               {"order 8 not found"},
		"messages?state=ready":                 {"300", "topic-5"},
		"messages?state=delayed&topic=topic-1": {"topic-1"},
		"messages?state=done":                  {"598"},
		"messages?state=discarded":             {"599"},
		"messages?key=key-47":                  {"597", "Clear"},
		"messages?error=ORDER+33":              {"333"},
		"messages?group=" + groups[0].ID:       {"Error group"},
		"messages?topic=nothing":               {"No message matches."},
		"messages?before=2001-01-01":           {"No message matches."},
		"messages?in=inbox":                    {"m1", "shop/book", "order 1 is bad"},
		"messages?in=queue&state=seen":         {"m5"},
		"message?id=3":                         {"u3", "dead", "topic-3", "key-3", "Attempts 10", "n 1", "ago"},
		"message?in=inbox&id=shop/book:m1":     {"m1", "shop/book", "order 1 is bad"},
		"message?in=queue&id=shop%253A0:m3":    {"m3", "shop:0"},
		"audit":                                {"Paused", "topic-3", "they asked us to", "alice"},
	} {
		got := reads.get(path)
		require.Equal(t, http.StatusOK, got.status, "%s: %s", path, got.body)
		got.says(t, path, append(says, "Read only")...)
		for _, text := range []string{"verb=", `"verb"`, "data-ask", `type="checkbox"`} {
			if strings.Contains(got.body, text) {
				t.Errorf("%s has %s for a read-only user", path, text)
			}
		}
		assert.Equal(t, "no-store", got.header.Get("Cache-Control"))
		assert.Contains(t, got.header.Get("Content-Security-Policy"), "default-src 'none'")
		assert.NotContains(t, got.header.Get("Content-Security-Policy"), "unsafe")
		assert.Empty(t, got.header.Values("Set-Cookie"), "users who cannot act need no token")

		more := acts.get(path)
		require.Equal(t, http.StatusOK, more.status, path)
		more.says(t, path, append(says, "alice")...)
	}
	reads.get("message?id=3").says(t, "without Access.Payloads", "Payloads are not shown")
	acts.get("message?id=3").says(t, "with it", "2 bytes, text p3")
	acts.get("message?in=queue&id=shop%253A0:m3").says(t, "the queue", "1 bytes, text x")
	acts.get("messages").says(t, "dead", "All dead: Requeue Discard…")
	acts.get("messages?state=done").says(t, "done", "All done: Replay… Select")
	for path, status := range map[string]int{
		"message?id=7777777": 404, "message": 400, "message?id=1&id=2": 400, "message?id=x": 400,
		"message?in=inbox&id=x": 400, "nothing": 404, "index.html": 404,
		"messages?in=x": 400, "messages?state=x": 400, "messages?after=x": 400,
		"messages?page=x":    400,
		"messages?topic=%00": 400, "messages?key=%ff": 400, "audit?page=x": 400, "errors?in=x": 400,
		"messages?in=inbox&topic=x": 400, "messages?consumer=x": 400,
		"audit?done=x": 200, "?done=x": 200, "?done=-1": 200, "?done=99999999999999999999": 200, "?done=77": 200, "act": 403,
	} {
		got := reads.get(path)
		assert.Equal(t, status, got.status, path)
		assert.Equal(t, "no-store", got.header.Get("Cache-Control"))
	}
	assert.Empty(t, reads.log.take(), "invalid requests are not logged")
}

// TestPagesOfAList follows the links of a list.
func TestPagesOfAList(t *testing.T) {
	extended(t)
	h := onPgx(t)
	fillOutbox(t, h, 1200)
	s, seen := newSite(t, h, ui.Access{}), map[string]bool{}
	for path := "messages?topic=topic-2&state=done"; path != ""; {
		got, next := s.get(path), ""
		require.Equal(t, http.StatusOK, got.status)
		for _, a := range elements(t, got.body, "a") {
			if strings.HasPrefix(a["href"], "message?") {
				require.False(t, seen[a["href"]], a["href"])
				seen[a["href"]] = true
			}
			if a["rel"] == "next" {
				next = a["href"]
			}
		}
		path = next
	}
	assert.Len(t, seen, h.count(t, "SELECT count(*) FROM outbox WHERE topic = 'topic-2' AND published_at IS NOT NULL "+
		"AND dead_at IS NULL"))
}

// TestPageOfManyTopics: the overview stays small, and shows the requested topic.
func TestPageOfManyTopics(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload) SELECT n, 'topic-' || n, '' FROM generate_series(100, 2099) n`)
	s := newSite(t, h, ui.Access{Act: true})
	got := s.get("")
	got.says(t, "overview", "1,900 more topics, which need less attention, are not shown")
	assert.Less(t, len(got.body), 300_000)
	const row = `<bdi>topic-2099</bdi></a></th>`
	assert.NotContains(t, got.body, row)
	assert.Contains(t, s.get("?topic=topic-2099").body, row)
}

func TestPageOfEmptyTables(t *testing.T) {
	t.Parallel()
	s := newSite(t, newPgxHandle(t, newMigratedDatabase(t)), ui.Access{Act: true})
	for path, says := range map[string]string{
		"": "Healthy", "errors": "No dead or failing messages here", "messages": "No dead messages.",
		"messages?state=failing": "No failing messages",
		"messages?state=done":    "Retention", "messages?state=discarded": "No discarded messages",
		"messages?in=queue&state=seen": "No messages here", "audit": "The audit log is empty",
	} {
		got := s.get(path)
		assert.Equal(t, http.StatusOK, got.status, path)
		got.says(t, path, says)
	}
}

// TestPageUnderPrefixes mounts the page in several ways.
func TestPageUnderPrefixes(t *testing.T) {
	t.Parallel()
	page := newSite(t, newPgxHandle(t, newMigratedDatabase(t)), ui.Access{}).handler
	mux := http.NewServeMux()
	mux.Handle("/", page)
	mux.Handle("/plain/", page)
	mux.Handle("/stripped/", http.StripPrefix("/stripped", page))
	mux.Handle("/a/b/", http.StripPrefix("/a/b/", page))
	mux.Handle("/bare", http.StripPrefix("/bare", page))
	mux.Handle("GET /only/{page...}", page)
	server := httptest.NewServer(mux)
	defer server.Close()
	client := server.Client()
	read := func(path string) (status int, at string) {
		r, err := client.Get(server.URL + path)
		require.NoError(t, err)
		defer r.Body.Close()
		return r.StatusCode, r.Request.URL.Path
	}
	for _, prefix := range []string{"/", "/plain/", "/stripped/", "/a/b/", "/only/"} {
		for _, name := range []string{
			"", "errors", "messages", "audit", "style.css", "script.js", "icon.svg", "health", "ready",
		} {
			status, _ := read(prefix + name)
			assert.Equal(t, http.StatusOK, status, prefix+name)
		}
	}
	for _, prefix := range []string{"/plain", "/stripped", "/bare"} {
		_, at := read(prefix)
		assert.Equal(t, prefix+"/", at)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/x", nil)
	r.URL.Path, r.RequestURI = "", "//evil.example/..;/javascript:alert(1)?x"
	page.ServeHTTP(w, r)
	u, err := url.Parse(w.Header().Get("Location"))
	require.NoError(t, err)
	assert.Empty(t, u.Host+u.Scheme, w.Header().Get("Location"))
}

func TestPageAssets(t *testing.T) {
	t.Parallel()
	s := newGuardedSite(t, newPgxHandle(t, newMigratedDatabase(t)), func(*http.Request) (ui.Access, error) {
		return ui.Access{}, errors.New("nobody")
	})
	for name, kind := range map[string]string{
		"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		got := s.get(name)
		assert.Equal(t, http.StatusOK, got.status)
		assert.Equal(t, kind, got.header.Get("Content-Type"))
		assert.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"))
		assert.Equal(t, "no-store", got.header.Get("Cache-Control"), "without its hash the file may change")
	}
	for _, e := range elements(t, s.get("").body, "link") {
		assert.Contains(t, s.get(e["href"]).header.Get("Cache-Control"), "immutable", e["href"])
	}
}

// TestPageWithoutDatabase has no tables, and then no server.
func TestPageWithoutDatabase(t *testing.T) {
	h := onPgx(t)
	s := newSite(t, h, ui.Access{})
	assert.Equal(t, "ok\n", s.get("ready").body)
	h.exec(t, "ALTER TABLE outbox RENAME TO secret_outbox")
	overview := s.get("")
	assert.Equal(t, http.StatusOK, overview.status)
	overview.says(t, "overview", "The tables do not match the code", "The figures could not be read")
	assert.NotContains(t, textOf(t, overview.body), "SQLSTATE")
	assert.Len(t, s.log.take(), 1)
	assert.Equal(t, "critical\n", s.get("health").body)
	assert.Equal(t, http.StatusServiceUnavailable, s.get("health").status)
	assert.Equal(t, "ok\n", s.get("ready").body)
	for _, path := range []string{"errors", "messages", "message?id=1"} {
		got := s.get(path)
		assert.Equal(t, http.StatusServiceUnavailable, got.status, path)
		got.says(t, path, "The database does not respond")
		assert.NotContains(t, textOf(t, got.body), "SQLSTATE")
		assert.Len(t, s.log.take(), 1, path)
	}
	h.pool.Close()
	eventually(t, func() bool {
		return s.get("ready").status == http.StatusServiceUnavailable
	}, "the probe notices")
	assert.Equal(t, "unavailable\n", s.get("ready").body)
	eventually(t, func() bool { return s.get("health").body == "unavailable\n" }, "the verdict is recomputed")
	assert.Equal(t, http.StatusServiceUnavailable, s.get("health").status)
	assert.Empty(t, s.log.take(), "probes are not logged")
}

// TestPageRuns: charts have data even if no one has opened the page.
func TestPageRuns(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 60)
	page, err := ui.New(h.db, ui.Config{SampleInterval: 20 * time.Millisecond}, nil)
	require.NoError(t, err)
	s := &site{t: t, handler: page}
	s.get("").says(t, "at first", "The chart starts now")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- page.Run(ctx) }()
	eventually(t, func() bool { return strings.Count(s.get("").body, `class="line"`) == 4 }, "four charts with a line")
	require.ErrorIs(t, page.Run(ctx), outbox.ErrRunning)
	cancel()
	require.NoError(t, <-ended)

	_, err = ui.New(nil, ui.Config{}, nil)
	require.ErrorIs(t, err, outbox.ErrNoDB)
	_, err = ui.New(h.db, ui.Config{SampleInterval: -1}, nil)
	require.ErrorContains(t, err, "SampleInterval")
}

// TestPageAsksNothingUnbound: if the database cannot count the messages in time, no confirmation is offered, because
// the action would not be limited to the counted messages.
func TestPageAsksNothingUnbound(t *testing.T) {
	t.Parallel()
	proxy := newProxy(t, newMigratedDatabase(t))
	h := newPgxHandle(t, proxy.url)
	fillOutbox(t, h, 60)
	fillInbox(t, h, 40)
	fillQueue(t, h, 60)
	before := tableStates(t, h)
	links := []string{
		"act?verb=requeue&in=outbox&state=dead&all=yes", "act?verb=requeue&in=inbox&state=dead&all=yes",
		"act?verb=requeue&in=queue&state=dead&all=yes",
	}
	asked := make([]reply, len(links))
	var done sync.WaitGroup
	proxy.freeze()
	for i, link := range links {
		s := newSite(t, h, ui.Access{Actor: "alice", Act: true})
		done.Go(func() { asked[i] = s.get(link) })
	}
	done.Wait()
	proxy.thaw()
	for i, link := range links {
		assert.Equal(t, http.StatusGatewayTimeout, asked[i].status, "%s: %.300s", link, textOf(t, asked[i].body))
		for _, input := range elements(t, asked[i].body, "input") {
			assert.Equal(t, "q", input["name"], "%s: only the search form is left", link)
		}
	}
	s := newSite(t, h, ui.Access{Actor: "alice", Act: true})
	s.get("")
	for in, tried := range map[string]string{
		"inbox": "inbox.0.-62135596800000000.more", "queue": "queue.0.-62135596800000000.more", "outbox": "outbox.0.0.more",
	} {
		form := url.Values{
			"verb": {"requeue"}, "filter": {"in=" + in + "&state=dead&all=yes"}, "sure": {"yes"}, "preview": {tried},
		}
		require.Equal(t, http.StatusBadRequest, s.post(form).status, tried)
	}
	assert.Equal(t, before, tableStates(t, h))
}
