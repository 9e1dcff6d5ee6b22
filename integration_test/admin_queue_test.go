package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

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
	for name, c := range map[string]struct {
		filter admin.Filter
		where  string
		order  string
	}{
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
			want := column[string](t, h, "SELECT source || message_id FROM (SELECT q.*, "+sqltext.QueueState+
				" AS s FROM inbox_queue q) q WHERE "+c.where+" ORDER BY "+c.order)
			require.NotEmpty(t, want)
			c.filter.In = admin.Queue
			var got []string
			for p := (admin.Page{Limit: 90}); ; {
				l, err := a.List(t.Context(), c.filter, p)
				require.NoError(t, err)
				for _, m := range l.Messages {
					got = append(got, m.Consumer+m.UUID)
				}
				if p.After = l.Next; p.After == "" {
					break
				}
			}
			assert.Equal(t, want, got)
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

// TestQueueActs has what was requeued claimed by the store.
func TestQueueActs(t *testing.T) {
	t.Parallel()
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
		r, err := a.Discard(t.Context(), admin.Act{
			Reason: "no", Filter: admin.Filter{In: admin.Queue, IDs: []string{"shop%3A0:m3", "shop%3A0:m9"}},
		})
		require.NoError(t, err)
		assert.Equal(t, int64(2), r.Touched)
		r, err = a.Requeue(t.Context(), admin.Act{Filter: admin.Filter{In: admin.Queue, All: true}})
		require.NoError(t, err)
		assert.Equal(t, int64(8), r.Touched)
		assert.Zero(t, h.count(t, "SELECT count(*) FROM inbox_queue WHERE state = 'processing' AND crashes > 0"),
			"none is suspected of what it did before")
		assert.Zero(t, h.count(t, "SELECT count(*) FROM inbox_queue WHERE state = 'processing' AND expires_at IS NOT NULL"),
			"none expires again at once")
		assert.Equal(t, 8, claim())
		r, err = a.Requeue(t.Context(), admin.Act{Filter: admin.Filter{In: admin.Queue, All: true}})
		require.NoError(t, err)
		assert.Zero(t, r.Touched)
		r, err = a.RetryNow(t.Context(), admin.Act{Filter: admin.Filter{In: admin.Queue, All: true}})
		require.NoError(t, err)
		assert.Equal(t, int64(10), r.Touched)
		assert.Equal(t, 10, claim())
		assert.Equal(t, []string{"discarded by alice: no; before: order 3 is bad"},
			column[string](t, h, "SELECT last_error FROM inbox_queue WHERE message_id = 'm3' AND state = 'done'"))
	})
}

// TestADelayedMessageIsAsOldAsItsDueTime: it has waited since then, and not since it was stored.
func TestADelayedMessageIsAsOldAsItsDueTime(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	storeAll(t, newStore(t, h, queue.StoreConfig{}), items("letters", 1)...)
	h.exec(t, "UPDATE inbox_queue SET first_seen_at = now() - interval '1 hour', due_at = now() - interval '1 minute'")
	s, err := newAdmin(t, h).Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	require.Len(t, s.Queue, 1)
	assert.InDelta(t, time.Minute, s.Queue[0].Oldest, float64(patience))
}
