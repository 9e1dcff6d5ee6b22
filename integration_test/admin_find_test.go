package integration_test

import (
	"encoding/json"
	"fmt"
	"html"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/trend"
)

// foundAll returns table and id of each result on all pages of a search.
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
			assert.Zero(t, l.Progress, "everything was searched")
			return all
		}
		p.After = l.Next
	}
}

// TestFind finds one message in all tables by each of its names, page by page.
func TestFind(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 3000)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, metadata) VALUES ('letter', 'dead_letters', '', '{"uuid_poisoned": "u40"}')`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, processed_at)
		SELECT 'shop/h' || i, CASE i % 500 WHEN 7 THEN 'u40' ELSE 'm' END, now() FROM generate_series(1, 2500) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, key, state)
		SELECT 'from' || i, CASE i % 500 WHEN 7 THEN 'u40' ELSE 'm' || i END, 'orders', 'k' || i, 'dead' FROM generate_series(1, 1500) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, key, state) VALUES ('shop', 'own key', 'orders', 'own key', 'dead')`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, key) VALUES ('03002', 'orders', '', '03002')`)
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
	assert.Equal(t, []string{"queue shop:own key dead"}, foundAll(t, a, "own key", 1), "found by its id and by its key")
	for _, limit := range []int{1, 50} {
		assert.Equal(t, []string{"outbox 3002 ready"}, foundAll(t, a, "03002", limit), "its UUID is its id with a zero")
	}
	key := foundAll(t, a, "key-6", 7)
	assert.Len(t, key, int(h.count(t, "SELECT count(*) FROM outbox WHERE key = 'key-6'")))
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(key))), len(key), "no duplicates")

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
	for next := []string{}; next != nil; { // a page holds the results of about one second
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

// findAll follows the pages of a search to the end; a page holds the results of about one second. The body of the reply
// joins those of all pages.
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

// TestListProgress lists page by page and checks the progress of each page.
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

// TestTrendIsInTheRows: the rates of written and published messages come only from the rows, so a page that has just
// started shows an hour of them and whether the backlog drains.
func TestTrendIsInTheRows(t *testing.T) {
	h := onPgx(t)
	// For two hours one message a second was written and published with a backlog of an hour; for ten minutes two a
	// second have been published.
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, created_at, published_at)
		SELECT i::text, CASE i % 4 WHEN 0 THEN 'letters' ELSE 'orders' END, '', now() - i * interval '1 second',
		       CASE WHEN i > 3000 THEN now() - (CASE WHEN i > 4200 THEN i - 3600 ELSE (i - 3000) / 2 END) *
		         interval '1 second' END
		  FROM generate_series(7200, 1, -1) i`)
	h.exec(t, `ANALYZE outbox`)
	hour, err := trend.Read(t.Context(), (*core.DB)(h.db), trend.Config{Over: time.Hour})
	require.NoError(t, err)
	require.Len(t, hour.Points, 60)
	assert.Equal(t, time.Minute, hour.Step)
	assert.False(t, hour.About, "few rows are counted exactly")
	for _, p := range hour.Points[1:59] {
		assert.InDelta(t, 1, p.Written, 0.1, p.At)
	}
	written, published := hour.Now()
	assert.InDelta(t, 1, written, 0.1)
	assert.InDelta(t, 2, published, 0.3)
	require.Len(t, hour.Topics, 2)
	assert.Equal(t, "orders", hour.Topics[0].Topic)
	assert.InDelta(t, 0.75, hour.Topics[0].Written, 0.1)

	of, err := trend.Read(t.Context(), (*core.DB)(h.db), trend.Config{Over: time.Hour, Topic: "letters"})
	require.NoError(t, err)
	for _, p := range of.Points[1:59] {
		assert.InDelta(t, 0.25, p.Written, 0.1, p.At)
	}
	_, published = of.Now()
	assert.InDelta(t, 0.5, published, 0.1)
	assert.Len(t, of.Topics, 2, "trends of all topics")

	over, err := trend.Read(t.Context(), (*core.DB)(h.db), trend.Config{Over: 24 * time.Hour})
	require.NoError(t, err)
	sum := 0.0
	for _, p := range over.Points {
		sum += p.Written * over.Step.Seconds()
	}
	assert.InDelta(t, 7200, sum, 10)

	s := newSite(t, h, ui.Access{})
	page := s.get("")
	page.says(t, "overview", "Written and published", "draining, empty in about", "1.0/s written", "Last day")
	assert.NotContains(t, page.body, "from a sample")
	s.get("?range=day").says(t, "overview of a day", "24h ago", "12h ago")
	page.says(t, "figures without hovering", "Figures of the chart", "1.0/s")
	assert.Contains(t, page.body, `href="./?topic=letters#trend"`, "from the topic's row")
	letters := s.get("?topic=letters&range=day")
	letters.says(t, "the chart of a topic", "Written and published: letters", "draining, empty in about", "0.2",
		"All topics")
	assert.Contains(t, letters.body, `href="./?topic=letters#trend"`, "link to its last hour")
	assert.Contains(t, letters.body, `href="./?range=day#trend"`, "link to all topics")
}

// TestTrendOfWhatGrows: one of two topics is written faster than it is published.
func TestTrendOfWhatGrows(t *testing.T) {
	extended(t)
	h := onPgx(t)
	// Topic orders: three messages a second are written, one is published. Topic letters: one a second of each.
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, created_at, published_at)
		SELECT i::text, CASE i % 4 WHEN 0 THEN 'letters' ELSE 'orders' END, '', now() - i * interval '0.25 s',
		       CASE WHEN i % 4 < 2 THEN now() - i * interval '0.25 s' END
		  FROM generate_series(7200, 1, -1) i`)
	s := newSite(t, h, ui.Access{})
	s.get("").says(t, "overview", "growing by 2.0/s", "4.0/s written, 2.0/s published")
	s.get("?topic=orders").says(t, "of orders", "growing by 2.0/s", "3.0/s written, 1.0/s published")
	letters := s.get("?topic=letters")
	letters.says(t, "the trend of letters", "1.0/s written, 1.0/s published")
	assert.Equal(t, 1, strings.Count(textOf(t, letters.body), "growing by"), "only for all topics together")
}

// TestCountsGoOnForATime: messages beyond the first limit are counted if there is time and estimated if not.
func TestCountsGoOnForATime(t *testing.T) {
	extended(t)
	h := onPgx(t)
	rows := 20_000
	if os.Getenv("OUTBOX_LONG") != "" {
		rows = 10_000_000
	}
	if n, err := strconv.Atoi(os.Getenv("OUTBOX_ROWS")); err == nil {
		rows = n
	}
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, due_at, attempts, published_at, dead_at)
		SELECT md5(i::text), CASE WHEN i % 10 < 7 THEN 'orders' ELSE 'letters' END,
		       CASE WHEN i % 3 = 0 THEN 'hot' ELSE i::text END, '\x7b7d',
		       CASE WHEN i % 5 = 1 THEN now() + interval '1 day' END, 0, CASE WHEN i % 5 < 1 THEN now() END, NULL
		  FROM generate_series(1, $1) i`, rows)
	// Of five messages in the queue two are ready, one is delayed, one is dead and one is done.
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, first_seen_at, due_at, done_at, attempts)
		SELECT 'shop', i, CASE WHEN i % 10 < 7 THEN 'orders' ELSE 'letters' END,
		       CASE i % 5 WHEN 0 THEN 'done' WHEN 1 THEN 'dead' ELSE 'processing' END, now(),
		       CASE WHEN i % 5 = 2 THEN now() + interval '1 day' END, CASE WHEN i % 5 = 0 THEN now() END,
		       CASE WHEN i % 5 = 1 THEN 10 ELSE 0 END
		  FROM generate_series(1, $1) i`, 60_000+rows/8)
	a := newAdmin(t, h)
	patient, err := admin.New(h.db, admin.Config{QueryTimeout: -1}, nil) // counts ten million messages
	require.NoError(t, err)
	begun := time.Now()
	hour, err := trend.Read(t.Context(), (*core.DB)(h.db), trend.Config{Over: time.Hour})
	require.NoError(t, err)
	t.Logf("a trend took %s, from a sample: %v", time.Since(begun).Round(time.Millisecond), hour.About)
	sum := 0.0
	for _, p := range hour.Points {
		sum += p.Written * hour.Step.Seconds()
	}
	assert.InEpsilon(t, rows, sum, 0.1, "all were written within the hour")
	for range 2 {
		begun := time.Now()
		s, err := a.Stats(t.Context(), admin.StatsConfig{})
		require.NoError(t, err)
		took := time.Since(begun)
		exact, err := patient.Stats(t.Context(), admin.StatsConfig{Exact: true})
		require.NoError(t, err)
		require.Len(t, s.Topics, 2)
		require.Len(t, s.Queue, 2)
		for i, topic := range slices.Concat(s.Topics, s.Queue) {
			really := slices.Concat(exact.Topics, exact.Queue)[i]
			for state, c := range map[string][2]admin.Count{
				"ready": {topic.Ready, really.Ready}, "delayed": {topic.Delayed, really.Delayed},
				"dead": {topic.Dead, really.Dead},
			} {
				off := 100 * math.Abs(float64(c[0].N-c[1].N)) / max(1, float64(c[1].N))
				t.Logf("%d rows, %s %s of %s: %d, really %d, estimated: %v, off by %.1f %%; all took %s", rows, topic.Topic, state,
					[]string{"the outbox", "the queue"}[i/2], c[0].N, c[1].N, c[0].About, off, took.Round(time.Millisecond))
				assert.False(t, c[0].More)
				if c[0].About {
					assert.Less(t, off, 15.0)
				} else {
					assert.Zero(t, off)
				}
			}
		}
	}
}
