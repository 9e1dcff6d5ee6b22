package integration_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestPartitionedOrder runs the order test while partitions are made and dropped as fast as possible: settled messages are
// old immediately. A drop needs the outbox to itself, for which no transaction may be open for 100 ms: after a run that
// tried in vain, writers begin none until the next run has ended.
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
	done, gate := make(chan struct{}), &sync.RWMutex{}
	run := orderRun{writers: 16, time: orderTime(patience), until: done, gate: gate, started: func(handle) {
		maintaining.Go(func() {
			inVain, ended := false, false
			for begun := time.Now(); ctx.Err() == nil; {
				if inVain {
					gate.Lock()
				}
				r, err := a.MaintainPartitions(ctx, admin.PartitionsConfig{Retention: time.Millisecond, PartitionSize: 1000})
				if inVain {
					gate.Unlock()
				}
				if ctx.Err() == nil {
					assert.NoError(t, err)
				}
				inVain = slices.ContainsFunc(r.Kept, func(k admin.KeptPartition) bool { return strings.HasPrefix(k.Why, "in use") })
				made, dropped, removed = made+len(r.Made), dropped+len(r.Dropped), removed+r.Removed
				if !ended && dropped > 0 && time.Since(begun) > orderTime(12*time.Second) {
					ended = true
					close(done)
				}
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
