package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestReapsBehindABacklog: abandoned messages behind many unclaimed ones, in both reading orders, more than one
// statement reads.
func TestReapsBehindABacklog(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	const backlog, gone = 25_000, 600
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at)
		SELECT 's', kind || i, 't', 'processing', CASE kind WHEN 'due' THEN now() - interval '1 hour' END
		  FROM (VALUES ('fresh'), ('due')) k(kind), generate_series(1, $1::int) i`, backlog)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at, owner, locked_until)
		SELECT 'gone', kind || i, 'gone', 'processing', CASE kind WHEN 'due' THEN now() - interval '1 minute' END, gen_random_uuid(), now() - interval '1 second'
		  FROM (VALUES ('fresh'), ('due')) k(kind), generate_series(1, $1::int) i`, gone)
	// Handlers that have acked some of them are still running.
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(),
		`SELECT FROM inbox_queue WHERE source = 'gone' AND message_id IN ('fresh1', 'due2') FOR UPDATE`)
	require.NoError(t, err)
	reaped, err := s.ReapExpired(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2*gone-2, reaped)
	require.NoError(t, tx.Rollback(t.Context()))
	reaped, err = s.ReapExpired(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2, reaped)
	assert.Equal(t, 2*gone, h.count(t, `SELECT count(*)::int FROM inbox_queue WHERE source = 'gone' AND owner IS NULL `+
		`AND attempts = 1 AND crashes = 1`))
	assert.Zero(t, h.count(t, `SELECT count(*)::int FROM inbox_queue WHERE source = 's' AND attempts > 0`))

	// A Dispatcher limits the time of each round and continues in the next one.
	h.exec(t, `UPDATE inbox_queue SET owner = gen_random_uuid(), locked_until = now() - interval '1 second', `+
		`due_at = now() - interval '1 second' WHERE source = 'gone'`)
	cfg := quickDispatcher(map[string]queue.Handler{"gone": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	cfg.LeaseTTL = time.Second
	dispatching(t, s, cfg)
	eventually(t, func() bool {
		return h.count(t, `SELECT count(*)::int FROM inbox_queue WHERE source = 'gone' AND crashes < 2`) == 0
	}, "all are released")
}

// TestReapLeavesWhatIsHandled: a message stays with its owner until the lease expires, even if the message itself has
// expired.
func TestReapLeavesWhatIsHandled(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	s, owner := newStore(t, h, quickStore()), queue.NewOwner()
	storeAll(t, s, items("orders", 2)...)
	require.Len(t, claimed(t, s, owner, 2), 2)
	h.exec(t, `UPDATE inbox_queue SET expires_at = now() - interval '1 hour' WHERE message_id = 'orders-1'`)
	reaped, err := s.ReapExpired(t.Context())
	require.NoError(t, err)
	assert.Zero(t, reaped)
	assert.Empty(t, claimed(t, s, queue.NewOwner(), 2))
	n, err := s.Ack(t.Context(), owner, itemID("orders", 0), itemID("orders", 1))
	require.NoError(t, err)
	assert.Equal(t, 2, n)
}
