package integration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// TestWhatIsSentAgainIsNotFailing: what an operator requeues or replays is ready until it fails again, in lists,
// counts, error groups, metrics, doctor and the page.
func TestWhatIsSentAgainIsNotFailing(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at, attempts, last_error, published_at, dead_at, created_at)
		SELECT i::text, 'orders', '', now(), CASE WHEN i < 6 THEN 9 ELSE 0 END, CASE WHEN i < 6 THEN 'broken' END,
		       CASE WHEN i > 5 THEN now() END, CASE WHEN i < 6 THEN now() END, now() - interval '5 hours'
		  FROM generate_series(1, 10) i`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error, dead_at)
		SELECT 'shop/book', i::text, now() - interval '5 hours', 9, 'broken', now() FROM generate_series(1, 5) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, attempts, last_error, first_seen_at)
		SELECT 'shop', i::text, 'orders', 'dead', 9, 'broken', now() - interval '5 hours' FROM generate_series(1, 5) i`)
	a := newAdmin(t, h)
	for in, n := range map[admin.Table]int64{admin.Outbox: 5, admin.Inbox: 5, admin.Queue: 5} {
		r, err := a.Requeue(t.Context(), admin.Act{Filter: admin.Filter{In: in, All: true}})
		require.NoError(t, err)
		require.Equal(t, n, r.Touched)
	}
	r, err := a.Replay(t.Context(), admin.Act{Filter: admin.Filter{All: true}})
	require.NoError(t, err)
	require.Equal(t, int64(5), r.Touched)

	for in, n := range map[admin.Table]int{admin.Outbox: 10, admin.Inbox: 5, admin.Queue: 5} {
		for state, want := range map[admin.State]int{admin.Ready: n, admin.Failing: 0} {
			l, err := a.List(t.Context(), admin.Filter{In: in, States: []admin.State{state}}, admin.Page{Limit: 3})
			got := 0
			for ; err == nil && l.Next != ""; l, err = a.List(t.Context(),
				admin.Filter{In: in, States: []admin.State{state}}, admin.Page{Limit: 3, After: l.Next}) {
				got += len(l.Messages)
			}
			require.NoError(t, err)
			assert.Equal(t, want, got+len(l.Messages), "%s messages of the %s", state, in)
		}
		groups, err := a.ErrorGroups(t.Context(), admin.Filter{In: in})
		require.NoError(t, err)
		assert.Empty(t, groups, in)
	}
	for _, exact := range []bool{false, true} {
		s, err := a.Stats(t.Context(), admin.StatsConfig{Exact: exact})
		require.NoError(t, err)
		require.Len(t, s.Topics, 1)
		assert.Equal(t, [2]admin.Count{{N: 10}, {}}, [2]admin.Count{s.Topics[0].Ready, s.Topics[0].Failing})
		require.Len(t, s.Queue, 1)
		assert.Equal(t, [2]admin.Count{{N: 5}, {}}, [2]admin.Count{s.Queue[0].Ready, s.Queue[0].Failing})
		assert.Empty(t, s.Inbox)
	}
	findings, err := a.Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range findings {
		assert.NotEqual(t, "failing", f.Check, f.Evidence)
	}
	found := scraped(t, newCollector(t, h, prom.CollectorConfig{}))
	assert.InDelta(t, 10, found["messages{state=ready,topic=orders}"], 0)
	assert.InDelta(t, 5, found["queue_messages{state=ready,topic=orders}"], 0)
	for _, series := range []string{
		"messages{state=failing,topic=orders}", "queue_messages{state=failing,topic=orders}",
		"inbox_messages{consumer=shop/book,state=failing}",
	} {
		assert.Zero(t, found[series], series)
	}
	page := newSite(t, h, ui.Access{}).get("messages?state=ready")
	assert.NotContains(t, page.body, "broken")

	// One that fails again is failing.
	h.exec(t, `UPDATE outbox SET attempts = attempts + 1, last_error = 'again' WHERE id = 1`)
	h.exec(t, `UPDATE inbox SET attempts = attempts + 1, last_error = 'again' WHERE message_id = '1'`)
	s, err := a.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	assert.Equal(t, admin.Count{N: 1}, s.Topics[0].Failing)
	require.Len(t, s.Inbox, 1)
	assert.Equal(t, admin.Count{N: 1}, s.Inbox[0].Failing)
}
