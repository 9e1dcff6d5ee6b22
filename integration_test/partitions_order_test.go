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

// TestPartitionedOrder runs the order test while partitions are made and dropped as fast as that goes: all that was
// settled is old at once.
func TestPartitionedOrder(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	url := newOrderDatabase(t)
	writer := pgxHandle(t, "writer", url, manyConns)
	intoPartitions(t, writer, nine(1000)...)
	sabotage := &fetchSaboteur{every: 20}
	reader := pgxHandle(t, "reader", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sabotage })
	writer.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('u', 'later', '', now() + interval '1 hour')`)
	a, err := admin.New(newPgxHandle(t, url).db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	made, dropped, removed := 0, 0, int64(0)
	var maintaining sync.WaitGroup
	t.Cleanup(func() {
		stop()
		maintaining.Wait()
	})
	run := orderRun{writers: 16, time: orderTime(12 * time.Second), started: func(handle) {
		maintaining.Go(func() {
			for ctx.Err() == nil {
				r, err := a.MaintainPartitions(ctx, admin.PartitionsConfig{Retention: time.Millisecond, PartitionSize: 1000})
				if ctx.Err() == nil {
					assert.NoError(t, err)
				}
				made, dropped, removed = made+len(r.Made), dropped+len(r.Dropped), removed+r.Removed
			}
		})
	}}
	checkOrder(t, run, writer, reader, newLedger(true))
	stop()
	maintaining.Wait()
	t.Logf("partitions: %d made, %d dropped with %d messages; %s", made, dropped, removed, sabotage)
	assert.Positive(t, made)
	assert.Positive(t, dropped)
	assert.Equal(t, 1, writer.count(t, `SELECT count(*) FROM outbox_p0 WHERE uuid = 'u'`), "it is due in an hour")
}
