package integration_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// newAdmin returns an Admin for a handle.
func newAdmin(t testing.TB, h handle) *admin.Admin {
	t.Helper()
	a, err := admin.New(h.db, admin.Config{Actor: "alice", QueryTimeout: patience}, nil)
	require.NoError(t, err)
	return a
}

// listed returns all messages of a filter, read in pages of limit messages.
func listed(t testing.TB, a *admin.Admin, f admin.Filter, limit int) (all []admin.Message) {
	t.Helper()
	for p := (admin.Page{Limit: limit}); ; {
		l, err := a.List(t.Context(), f, p)
		require.NoError(t, err)
		all = append(all, l.Messages...)
		if p.After = l.Next; p.After == "" {
			return all
		}
	}
}

// fillOutbox writes n messages of all states, topics and keys.
func fillOutbox(t testing.TB, h handle, n int) {
	t.Helper()
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata, created_at, due_at, attempts, last_error, published_at, dead_at)
		SELECT 'u' || i, 'topic-' || i % 7, CASE WHEN i % 4 > 0 THEN 'key-' || i % 50 ELSE '' END, convert_to('p' || i, 'UTF8'), '{"n": "1"}',
		       now() - i * interval '1 second',
		       CASE i % 6 WHEN 1 THEN now() + (4000 + i * 7919 % 1000) * interval '1 second' WHEN 2 THEN now() + interval '1 minute' WHEN 3 THEN now() END,
		       CASE i % 6 WHEN 2 THEN 1 + i % 5 WHEN 3 THEN 10 ELSE 0 END,
		       CASE WHEN i % 6 IN (2, 3) THEN CASE WHEN i % 4 < 2 THEN 'order ' || i || ' not found' ELSE 'Broker "b' || i || '" away' END END,
		       CASE i % 6 WHEN 4 THEN now() WHEN 5 THEN now() END,
		       CASE i % 6 WHEN 3 THEN now() WHEN 5 THEN now() END
		  FROM generate_series(1, $1::int) i`, n)
}

// TestListPages compares the pages of lists with what one plain query finds.
func TestListPages(t *testing.T) {
	h := onPgx(t)
	const rows = 4000
	fillOutbox(t, h, rows)
	// More rows of one topic and one lane than a step reads.
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, due_at, attempts, dead_at, last_error)
		SELECT 'v' || i, 'topic-3', 'key-6', '', CASE i % 3 WHEN 1 THEN now() + (4000 + i) * interval '1 second' END,
		       CASE i % 3 WHEN 2 THEN 1 ELSE 0 END, CASE i % 6 WHEN 2 THEN now() END, 'order ' || i || ' not found'
		  FROM generate_series(1, 2400) i`)
	// Delayed messages that are due, and requeued ones that have not failed since, are ready.
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, due_at, attempts)
		SELECT 'w' || i, 'topic-4', 'key-6', '', now() - i * 7919 % 1000 * interval '1 second', i % 2
		  FROM generate_series(1, 900) i`)
	a := newAdmin(t, h)
	begun := time.Now()
	group, err := a.ErrorGroups(t.Context(), admin.Filter{States: []admin.State{admin.Dead}})
	require.NoError(t, err)
	require.Len(t, group, 2)
	for name, c := range map[string]listCase{
		"all":       {admin.Filter{}, "true", "id DESC"},
		"dead":      {admin.Filter{States: []admin.State{admin.Dead}}, "s = 'dead'", "id DESC"},
		"failing":   {admin.Filter{States: []admin.State{admin.Failing}}, "s = 'failing'", "id"},
		"ready":     {admin.Filter{States: []admin.State{admin.Ready}}, "s = 'ready'", "due_at, id"},
		"delayed":   {admin.Filter{States: []admin.State{admin.Delayed}}, "s = 'delayed'", "due_at, id"},
		"done":      {admin.Filter{States: []admin.State{admin.Done}}, "s = 'done'", "id DESC"},
		"discarded": {admin.Filter{States: []admin.State{admin.Discarded}}, "s = 'discarded'", "id DESC"},
		"dead of a topic": {
			admin.Filter{States: []admin.State{admin.Dead}, Topic: "topic-3"}, "s = 'dead' AND topic = 'topic-3'", "id DESC",
		},
		"failing of a key": {
			admin.Filter{States: []admin.State{admin.Failing}, Key: "key-2"}, "s = 'failing' AND key = 'key-2'", "id",
		},
		"ready of a key": {
			admin.Filter{States: []admin.State{admin.Ready}, Key: "key-6"}, "s = 'ready' AND key = 'key-6'", "due_at, id",
		},
		"delayed of a topic": {
			admin.Filter{States: []admin.State{admin.Delayed}, Topic: "topic-1"}, "s = 'delayed' AND topic = 'topic-1'",
			"due_at, id",
		},
		"by error": {
			admin.Filter{States: []admin.State{admin.Dead}, ErrorContains: "ORDER 1"},
			"s = 'dead' AND last_error LIKE '%order 1%'", "id DESC",
		},
		"by a rare error": {
			admin.Filter{States: []admin.State{admin.Dead}, ErrorContains: "order 5"},
			"s = 'dead' AND last_error LIKE 'order 5%'", "id DESC",
		},
		"by group": {
			admin.Filter{States: []admin.State{admin.Dead}, ErrorGroup: group[0].ID},
			fmt.Sprintf("s = 'dead' AND last_error LIKE '%s%%'", group[0].Example[:5]), "id DESC",
		},
		"by age": {admin.Filter{After: begun.Add(-time.Hour), Before: begun.Add(-time.Minute)},
			"created_at >= '" + begun.Add(-time.Hour).UTC().Format(time.RFC3339Nano) + "' AND created_at < '" +
				begun.Add(-time.Minute).UTC().Format(time.RFC3339Nano) + "'", "id DESC"},
		"by id": {
			admin.Filter{States: []admin.State{admin.Dead}, IDs: []string{"9", "3", "4", "77777"}}, "id IN (3, 9)", "id",
		},
		"two states": {
			admin.Filter{States: []admin.State{admin.Dead, admin.Failing}}, "s IN ('dead', 'failing')",
			"s, CASE s WHEN 'dead' THEN -id ELSE id END",
		},
		"nothing fits": {admin.Filter{Topic: "topic-9"}, "false", "id"},
	} {
		t.Run(name, func(t *testing.T) {
			want := column[int64](t, h, "SELECT id FROM (SELECT o.*, "+sqltext.OutboxState+" AS s FROM outbox o) o WHERE "+
				c.where+" ORDER BY "+c.order)
			require.Equal(t, name == "nothing fits", len(want) == 0)
			for _, limit := range []int{0, 7, 1000} {
				if limit == 7 && len(want) > 200 || limit == 0 && len(want) > 1000 {
					continue
				}
				var got []int64
				for _, m := range listed(t, a, c.filter, limit) {
					id, err := strconv.ParseInt(m.ID, 10, 64)
					require.NoError(t, err)
					got = append(got, id)
				}
				require.True(t, slices.Equal(want, got), "limit %d: %d instead of %d", limit, len(got), len(want))
			}
		})
	}
}

func TestGetAndGroups(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		fillOutbox(t, h, 600)
		a := newAdmin(t, h)
		m, err := a.Get(t.Context(), admin.Outbox, "3")
		require.NoError(t, err)
		assert.Equal(t, "u3", m.UUID)
		assert.Equal(t, admin.Dead, m.State)
		assert.Equal(t, "p3", string(m.Payload))
		assert.Equal(t, 2, m.Bytes)
		assert.Equal(t, 10, m.Attempts)
		assert.Equal(t, "1", m.Metadata.Get("n"))
		assert.False(t, m.DeadAt.IsZero() || m.CreatedAt.IsZero())
		assert.True(t, m.SettledAt.IsZero() && m.DueAt.IsZero())
		_, err = a.Get(t.Context(), admin.Outbox, "6666")
		require.ErrorIs(t, err, admin.ErrNotFound)
		_, err = a.Get(t.Context(), admin.Outbox, "3; DROP TABLE outbox")
		require.ErrorContains(t, err, "not an id")

		groups, err := a.ErrorGroups(t.Context(), admin.Filter{})
		require.NoError(t, err)
		require.Len(t, groups, 2)
		assert.Equal(t, int64(100), groups[0].Count.N)
		assert.Equal(t, int64(100), groups[1].Count.N)
		texts := []string{groups[0].Text, groups[1].Text}
		slices.Sort(texts)
		assert.Equal(t, []string{`Broker "…" away`, "order <n> not found"}, texts)
		assert.Len(t, groups[0].Topics, 7)

		s, err := a.Stats(t.Context(), admin.StatsConfig{})
		require.NoError(t, err)
		exact, err := a.Stats(t.Context(), admin.StatsConfig{Exact: true})
		require.NoError(t, err)
		require.Len(t, s.Topics, 7)
		assert.WithinDuration(t, time.Now(), s.At, patience)
		for i, topic := range s.Topics {
			for state, n := range map[string]admin.Count{
				"ready": topic.Ready, "failing": topic.Failing, "delayed": topic.Delayed, "dead": topic.Dead,
			} {
				want := h.count(t, "SELECT count(*) FROM outbox o WHERE topic = $1 AND "+sqltext.OutboxState+" = $2",
					topic.Topic, state)
				assert.Equal(t, admin.Count{N: int64(want)}, n, "%s of %s", state, topic.Topic)
			}
			often := h.count(t, "SELECT count(*) FROM outbox o WHERE topic = $1 AND attempts > 3 AND "+sqltext.OutboxState+
				" = 'failing'", topic.Topic)
			assert.Positive(t, often)
			assert.Equal(t, admin.Count{N: int64(often)}, topic.FailingOften)
			assert.Greater(t, topic.Oldest, time.Minute)
			assert.Greater(t, topic.Rate, 0.0)
			topic.Oldest, exact.Topics[i].Oldest, topic.Rate, exact.Topics[i].Rate = 0, 0, 0, 0
			assert.Equal(t, topic, exact.Topics[i])
		}
	})
}

// TestStatsOfConsumersAndLanes counts failing messages by consumer and finds lanes that no forwarder reads.
func TestStatsOfConsumersAndLanes(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts, dead_at) SELECT 'shop/a', i, i, CASE `+
		`WHEN i > 8 THEN now() END FROM generate_series(1, 10) i`)
	h.exec(t, `INSERT INTO outbox_forwarders (id, scope, topics, name, expires_at) VALUES
		('00000000-0000-0000-0000-00000000000a', 'here', '{}', 'alive', now() + interval '1 hour'), ('00000000-0000-0000-0000-00000000000b', 'here', '{}', 'vanished', now() - interval '1 min'),
		('00000000-0000-0000-0000-00000000000c', 'there', '{}', 'alone', now() + interval '1 hour')`)
	h.exec(t, `INSERT INTO outbox_lanes (scope, lane, owner) SELECT 'here', i, CASE `+
		`WHEN i < 32 THEN '00000000-0000-0000-0000-00000000000a' WHEN i < 40 THEN '00000000-0000-0000-0000-00000000000b' `+
		`END::uuid FROM generate_series(0, 63) i`)
	h.exec(t, `INSERT INTO outbox_lanes (scope, lane, owner) SELECT 'there', i, '00000000-0000-0000-0000-00000000000c' `+
		`FROM generate_series(0, 63) i`)
	s, err := newAdmin(t, h).Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	require.Len(t, s.Inbox, 1)
	assert.Equal(t, admin.Count{N: 8}, s.Inbox[0].Failing)
	assert.Equal(t, admin.Count{N: 5}, s.Inbox[0].FailingOften)
	assert.Equal(t, map[string]int{"here": 32}, s.UnownedLanes,
		"24 have no owner, and the owner of 8 is gone")
	page := newSite(t, h, ui.Access{}).get("")
	page.says(t, "the page", "No forwarder reads 32 of the 64 lanes of scope here", "8 (5 more than 3 times)")
	screen := ctl{t: t, url: h.url}.run("stats").out
	assert.Regexp(t, `none +32 +here`, screen)
	assert.Regexp(t, `shop/a +8 +5 +2`, screen)

	h.exec(t, "DELETE FROM outbox_forwarders")
	newSite(t, h, ui.Access{}).get("").says(t, "the page", "No forwarder has run in the last hour",
		"No forwarder reads 64 of the 64 lanes of scope here")
	screen = ctl{t: t, url: h.url}.run("stats").out
	assert.Contains(t, screen, "none is running")
	assert.Regexp(t, `none +64 +here`, screen)
}

// TestGroupsAreBounded over all topics and consumers together, so that grouping many is as fast as grouping few.
func TestGroupsAreBounded(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, attempts, last_error, dead_at) SELECT i, 'topic-' || i % 5, `+
		`'', 1, 'away', CASE WHEN i <= 50 THEN now() END FROM generate_series(1, 100) i`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts, last_error, dead_at) SELECT 'shop/' || i % 5, i, 1, `+
		`'away', CASE WHEN i <= 50 THEN now() END FROM generate_series(1, 100) i`)
	const each, groups = int64(8), int64(100)
	count := func(statement string, args ...any) (n, topics, bounded int64) {
		var of int64
		var first, last time.Time
		err := drive.Collect(t.Context(), (*core.DB)(h.db), func(rows drive.Rows) error {
			var topic, text string
			var more bool
			err := rows.Scan(&topic, &text, &of, &first, &last, &more)
			n += of
			topics++
			if more {
				bounded++
			}
			return err
		}, (*core.DB)(h.db).Render(statement), args...)
		require.NoError(t, err)
		return n, topics, bounded
	}
	grouped := func(store *sqltext.Store, state, topic string, together int64) (n, owners, bounded int64) {
		return count(store.Group[state], topic, "", "", "", "", "", []string{state}, each, groups, int64(math.MaxInt64), "",
			"-infinity", "", int64(math.MaxInt64), []string{}, []string{}, "", together, 0)
	}
	for _, store := range []*sqltext.Store{sqltext.Outbox, sqltext.Inbox} {
		for _, state := range []string{"dead", "failing"} {
			for together, want := range map[int64]int64{1000: 40, 20: 20, 1: 5} {
				n, owners, bounded := grouped(store, state, "", together)
				assert.Equal(t, []int64{want, 5, 5}, []int64{n, owners, bounded}, "%d together", together)
			}
			if store == sqltext.Outbox {
				n, _, _ := grouped(store, state, "topic-1", 20)
				assert.Equal(t, int64(8), n, "one topic alone has all of it")
			}
		}
	}
}

// listCase is a filter, with a plain condition and order that find the same.
type listCase struct {
	filter       admin.Filter
	where, order string
}

// check compares the pages of a list with all that a plain query found.
func (c listCase) check(t *testing.T, a *admin.Admin, in admin.Table, limit int, want []string) {
	t.Helper()
	require.NotEmpty(t, want)
	c.filter.In = in
	var got []string
	for _, m := range listed(t, a, c.filter, limit) {
		got = append(got, m.Consumer+m.UUID)
	}
	assert.Equal(t, want, got)
}

func TestInboxLists(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error, processed_at, dead_at)
		SELECT 'shop:' || i % 3 || '%/h', 'm:' || i, now() - i % 100 * interval '1 second', i % 4,
		       CASE WHEN i % 4 > 0 THEN 'order ' || i || ' is bad' END,
		       CASE i % 4 WHEN 0 THEN now() WHEN 3 THEN now() END, CASE i % 4 WHEN 1 THEN now() WHEN 3 THEN now() END
		  FROM generate_series(1, 2000) i`)
	a := newAdmin(t, h)
	for name, c := range map[string]listCase{
		"all":  {admin.Filter{}, "true", "message_id"},
		"dead": {admin.Filter{States: []admin.State{admin.Dead}}, "s = 'dead'", "received_at, message_id"},
		"failing": {
			admin.Filter{States: []admin.State{admin.Failing}, ErrorContains: "ORDER 1"},
			"s = 'failing' AND last_error LIKE 'order 1%'", "received_at, message_id",
		},
		"done": {admin.Filter{States: []admin.State{admin.Done}}, "s = 'done'", "message_id"},
		"of one": {
			admin.Filter{States: []admin.State{admin.Dead}, Consumer: "shop:1%/h"}, "s = 'dead' AND consumer LIKE 'shop:1%'",
			"received_at, message_id",
		},
		"by id": {admin.Filter{IDs: []string{"shop%3A1%25/h:m:1", "shop%3A2%25/h:m:1"}}, "message_id = 'm:1'", "message_id"},
	} {
		t.Run(name, func(t *testing.T) {
			c.check(t, a, admin.Inbox, 70, column[string](t, h, "SELECT consumer || message_id FROM (SELECT i.*, "+
				sqltext.InboxState+" AS s FROM inbox i) i WHERE "+c.where+" ORDER BY consumer, "+c.order))
		})
	}
	m, err := a.Get(t.Context(), admin.Inbox, "shop%3A1%25/h:m:1")
	require.NoError(t, err)
	assert.Equal(t, "shop:1%/h", m.Consumer)
	assert.Equal(t, "m:1", m.UUID)
	assert.Equal(t, "shop%3A1%25/h:m:1", m.ID)
	groups, err := a.ErrorGroups(t.Context(), admin.Filter{In: admin.Inbox})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	assert.Equal(t, int64(1000), groups[0].Count.N)
	assert.Len(t, groups[0].Topics, 3)
	s, err := a.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	require.Len(t, s.Inbox, 3)
	for _, c := range s.Inbox {
		assert.Equal(t,
			int64(h.count(t, "SELECT count(*) FROM inbox WHERE consumer = $1 AND dead_at IS NOT NULL AND processed_at IS NULL",
				c.Consumer)), c.Dead.N)
		assert.Equal(t,
			int64(h.count(t, "SELECT count(*) FROM inbox WHERE consumer = $1 AND dead_at IS NULL AND processed_at IS NULL",
				c.Consumer)), c.Failing.N)
		assert.Greater(t, c.Oldest, 90*time.Second)
	}
}

// fillQueue writes n messages of all states.
func fillQueue(t testing.TB, h handle, n int) {
	t.Helper()
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, key, state, payload, first_seen_at, due_at, attempts, last_error, done_at)
		SELECT 'shop:' || i % 3, 'm' || i, CASE WHEN i % 6 < 5 THEN 'topic-' || i % 4 ELSE '' END, 'key-' || i % 9,
		       CASE i % 6 WHEN 3 THEN 'dead' WHEN 4 THEN 'done' WHEN 5 THEN 'seen' ELSE 'processing' END, 'x', now() - i * interval '1 second',
		       CASE i % 6 WHEN 1 THEN now() + interval '1 hour' + (i * 7919 % 1000) * interval '1 second' WHEN 2 THEN now() + interval '1 hour' END,
		       CASE WHEN i % 6 IN (2, 3) THEN 3 ELSE 0 END, CASE WHEN i % 6 IN (2, 3) THEN 'order ' || i || ' is bad' END,
		       CASE i % 6 WHEN 4 THEN now() END
		  FROM generate_series(1, $1::int) i`, n)
}

func TestQueueLists(t *testing.T) {
	h := onPgx(t)
	const rows = 2400
	fillQueue(t, h, rows)
	a := newAdmin(t, h)
	for name, c := range map[string]listCase{
		"all":  {admin.Filter{}, "true", "source, message_id"},
		"dead": {admin.Filter{States: []admin.State{admin.Dead}}, "s = 'dead'", "id DESC"},
		"failing": {
			admin.Filter{States: []admin.State{admin.Failing}, ErrorContains: "ORDER 1"},
			"s = 'failing' AND last_error LIKE 'order 1%'", "due_at, id",
		},
		"delayed": {
			admin.Filter{States: []admin.State{admin.Delayed}, Topic: "topic-1"}, "s = 'delayed' AND topic = 'topic-1'",
			"due_at, id",
		},
		"ready": {
			admin.Filter{States: []admin.State{admin.Ready}, Key: "key-3"}, "s = 'ready' AND key = 'key-3'", "id",
		},
		"done": {
			admin.Filter{States: []admin.State{admin.Done}, Consumer: "shop:1"}, "s = 'done' AND source = 'shop:1'",
			"source, message_id",
		},
		"seen": {admin.Filter{States: []admin.State{admin.Seen}}, "s = 'seen'", "source, message_id"},
		"by id": {
			admin.Filter{IDs: []string{"shop%3A1:m1", "shop%3A2:m1", "shop%3A0:m3"}}, "message_id IN ('m1', 'm3')", "id",
		},
		"by age": {
			admin.Filter{States: []admin.State{admin.Dead}, After: time.Now().Add(-time.Hour)}, "s = 'dead'", "id DESC",
		},
		"of one site": {
			admin.Filter{States: []admin.State{admin.Dead}, Consumer: "shop:0"}, "s = 'dead' AND source = 'shop:0'", "id DESC",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.check(t, a, admin.Queue, 90, column[string](t, h, "SELECT source || message_id FROM (SELECT q.*, "+
				sqltext.QueueState+" AS s FROM inbox_queue q) q WHERE "+c.where+" ORDER BY "+c.order))
		})
	}
	groups, err := a.ErrorGroups(t.Context(), admin.Filter{In: admin.Queue})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	assert.Equal(t, int64(rows/3), groups[0].Count.N)
	h.exec(t, "UPDATE inbox_queue SET attempts = 4 WHERE attempts = 3 AND id % 5 < 2")
	s, err := a.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	require.Len(t, s.Queue, 4)
	for _, topic := range s.Queue {
		for state, n := range map[string]admin.Count{
			"ready": topic.Ready, "failing": topic.Failing, "delayed": topic.Delayed, "dead": topic.Dead,
		} {
			want := h.count(t, "SELECT count(*) FROM inbox_queue q WHERE topic = $1 AND "+sqltext.QueueState+" = $2",
				topic.Topic, state)
			assert.Equal(t, admin.Count{N: int64(want)}, n, "%s of %s", state, topic.Topic)
		}
		often := h.count(t, "SELECT count(*) FROM inbox_queue q WHERE topic = $1 AND attempts > 3 AND "+sqltext.QueueState+
			" = 'failing'", topic.Topic)
		assert.Equal(t, admin.Count{N: int64(often)}, topic.FailingOften)
		assert.Equal(t, topic.Failing.N > 0, often > 0)
	}
	m, err := a.Get(t.Context(), admin.Queue, "shop%3A0:m3")
	require.NoError(t, err)
	assert.Equal(t, "x", string(m.Payload))
}

// TestQueueActs checks that the store claims requeued messages.
func TestQueueActs(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		fillQueue(t, h, 60)
		h.exec(t, "DELETE FROM inbox_queue WHERE state = 'processing' AND due_at IS NULL")
		a := newAdmin(t, h)
		store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
		require.NoError(t, err)
		claim := func() int {
			claimed, err := store.Claim(t.Context(), queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 100})
			require.NoError(t, err)
			return len(claimed)
		}
		require.Zero(t, claim())
		h.exec(t, "UPDATE inbox_queue SET crashes = 2, expires_at = now() - interval '1 hour' WHERE state = 'dead'")
		r, err := a.Discard(t.Context(), admin.Action{
			Reason: "no", Filter: admin.Filter{In: admin.Queue, IDs: []string{"shop%3A0:m3", "shop%3A0:m9"}},
		})
		require.NoError(t, err)
		assert.Equal(t, int64(2), r.Touched)
		r, err = a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Queue, All: true}})
		require.NoError(t, err)
		assert.Equal(t, int64(8), r.Touched)
		assert.Zero(t, h.count(t, "SELECT count(*) FROM inbox_queue WHERE state = 'processing' AND crashes > 0"),
			"earlier charges make no message a suspect")
		assert.Zero(t, h.count(t, "SELECT count(*) FROM inbox_queue WHERE state = 'processing' AND expires_at IS NOT NULL"),
			"no message expires again immediately")
		assert.Equal(t, 8, claim())
		r, err = a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Queue, All: true}})
		require.NoError(t, err)
		assert.Zero(t, r.Touched)
		r, err = a.RetryNow(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Queue, All: true}})
		require.NoError(t, err)
		assert.Equal(t, int64(10), r.Touched)
		assert.Equal(t, 10, claim())
		assert.Equal(t, []string{"discarded by alice: no; before: order 3 is bad"},
			column[string](t, h, "SELECT last_error FROM inbox_queue WHERE message_id = 'm3' AND state = 'done'"))
	})
}

// TestADelayedMessageIsAsOldAsItsDueTime: its age starts when it is due, not when it was stored.
func TestADelayedMessageIsAsOldAsItsDueTime(t *testing.T) {
	h := onPgx(t)
	storeAll(t, storeOn(t, h, queue.StoreConfig{}), items("letters", 1)...)
	h.exec(t, "UPDATE inbox_queue SET first_seen_at = now() - interval '1 hour', due_at = now() - interval '1 minute'")
	s, err := newAdmin(t, h).Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	require.Len(t, s.Queue, 1)
	assert.InDelta(t, time.Minute, s.Queue[0].Oldest, float64(patience))
}
