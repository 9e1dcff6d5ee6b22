package integration_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestPartitionedOrder runs the order test while partitions are created, emptied and, if the outbox is ever free,
// dropped as fast as possible: settled messages are old immediately. A run that cannot lock the outbox is cut off,
// since it would try for ten seconds.
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
	runs, made, dropped, removed := 0, 0, 0, int64(0)
	maintain := func(ctx context.Context) error {
		r, err := a.MaintainPartitions(ctx, admin.PartitionsConfig{Retention: time.Millisecond, PartitionSize: 1000})
		made, dropped, removed = made+len(r.Made), dropped+len(r.Dropped), removed+r.Removed
		return err
	}
	var maintaining sync.WaitGroup
	t.Cleanup(func() {
		stop()
		maintaining.Wait()
	})
	done := make(chan struct{})
	run := orderRun{writers: 16, time: orderTime(patience), until: done, started: func(handle) {
		maintaining.Go(func() {
			ended := false
			for begun := time.Now(); ctx.Err() == nil; runs++ {
				once, end := context.WithTimeout(ctx, 2*time.Second)
				if err := maintain(once); !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
					assert.NoError(t, err)
				}
				end()
				if !ended && removed > 0 && time.Since(begun) > orderTime(12*time.Second) {
					ended = true
					close(done)
				}
			}
		})
	}}
	checkOrder(t, run, writer, reader, newLedger(true))
	stop()
	maintaining.Wait()
	t.Logf("%d runs: %d partitions made, %d dropped, %d messages removed; %s", runs, made, dropped, removed, sabotage)
	assert.Positive(t, made)
	assert.Positive(t, removed)
	require.NoError(t, maintain(t.Context()))
	assert.Positive(t, dropped)
	assert.Equal(t, 1, writer.count(t, `SELECT count(*) FROM outbox_p0 WHERE uuid = 'u'`), "due in an hour")
}
