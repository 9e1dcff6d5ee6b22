package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestPartitionedOrder runs the order test while leaves are made, emptied with what must stay put back, and dropped, as
// fast as that goes: all that was settled is old at once.
func TestPartitionedOrder(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	url := newOrderDatabase(t)
	writer := pgxHandle(t, "writer", url, manyConns)
	intoLeaves(t, writer, 1000, 2000, 3000, 4000, 5000)
	sabotage := &fetchSaboteur{every: 20}
	reader := pgxHandle(t, "reader", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sabotage })
	writer.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('u', 'later', '', now() + interval '1 hour')`)
	a, err := admin.New(newPgxHandle(t, url).db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var total admin.RollResult
	var rolling sync.WaitGroup
	t.Cleanup(func() {
		stop()
		rolling.Wait()
	})
	run := orderRun{writers: 16, time: orderTime(12 * time.Second), started: func(handle) {
		rolling.Go(func() {
			for ctx.Err() == nil {
				r, err := a.RollOutbox(ctx, admin.RollConfig{Retention: time.Millisecond, PartitionSize: 1000})
				if ctx.Err() == nil {
					assert.NoError(t, err)
				}
				total.Made += r.Made
				total.Emptied += r.Emptied
				total.Dropped += r.Dropped
				total.Removed += r.Removed
				total.PutBack += r.PutBack
				total.Deleted += r.Deleted
			}
		})
	}}
	checkOrder(t, run, writer, reader, newLedger(true))
	stop()
	rolling.Wait()
	t.Logf("leaves: %d made, %d emptied, %d dropped; messages: %d removed, %d put back, %d deleted; %s", total.Made,
		total.Emptied, total.Dropped, total.Removed, total.PutBack, total.Deleted, sabotage)
	assert.Positive(t, total.Made)
	assert.Positive(t, total.Emptied)
	assert.Positive(t, total.PutBack, "the first leaf has a message that is due in an hour")
}
