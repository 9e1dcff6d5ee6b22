package integration_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// insertLimit is how much longer an INSERT may take while leaves are made, emptied and dropped.
const insertLimit = 50 * time.Millisecond

// TestRollDelaysNoInsert compares the slowest INSERT of several writers, into the current leaf and into the default,
// while one roll after another makes, empties and drops leaves, with the slowest of as long a time without. A forwarder
// publishes, and transactions read all leaves for a while. A busy machine delays INSERTs too, in either time, so one
// round in which no INSERT was slower is enough: a roll that others queue up behind slows each round.
func TestRollDelaysNoInsert(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10_000, 20_000, 30_000, 40_000, 50_000)
	startForwarder(t, h, quickConfig())
	busy := pgxHandle(t, "busy", h.url, func(cfg *pgxpool.Config) { cfg.MaxConns = 10 })
	phase := func(rolls bool) (took []time.Duration, r admin.RollResult) {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		var mu sync.Mutex
		var working sync.WaitGroup
		insert := func(statement string) {
			working.Go(func() {
				pace := time.NewTicker(5 * time.Millisecond) // a leaf is made a whole leaf above the ids
				defer pace.Stop()
				for ctx.Err() == nil {
					<-pace.C
					begun := time.Now()
					_, err := busy.pool.Exec(t.Context(), statement)
					if !assert.NoError(t, err) {
						return
					}
					mu.Lock()
					took = append(took, time.Since(begun))
					mu.Unlock()
				}
			})
		}
		for range 6 {
			insert(`INSERT INTO outbox (uuid, topic, key, payload) VALUES (gen_random_uuid(), 't', 'k' || random(), 'p')`)
		}
		for range 2 { // their ids are far above all leaves; the rolls delete them
			insert(`INSERT INTO outbox (id, uuid, topic, payload, published_at) VALUES ((random() * 1e15)::bigint + 1e15::bigint,
				'far', 't', 'p', now() - interval '1 h')`)
		}
		working.Go(func() {
			for ctx.Err() == nil {
				_, err := busy.pool.Exec(t.Context(), `DO $$ BEGIN PERFORM count(*) FROM outbox; PERFORM pg_sleep(0.15); END $$`)
				assert.NoError(t, err)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond): // in which a roll has its locks
				}
			}
		})
		for rolls && ctx.Err() == nil { // and each time the ids are in the next leaf
			h.exec(t, `SELECT setval('outbox_id_seq', last_value + 10000) FROM outbox_id_seq`)
			one, err := h.tryRoll(t, func(c *admin.RollConfig) { c.Retention = time.Millisecond })
			if !assert.NoError(t, err) {
				break
			}
			r.Made, r.Emptied, r.Dropped = r.Made+one.Made, r.Emptied+one.Emptied, r.Dropped+one.Dropped
		}
		working.Wait()
		require.NotEmpty(t, took)
		slices.Sort(took)
		return took, r
	}
	const rounds = 12
	for round := 1; ; round++ {
		control, _ := phase(false)
		during, r := phase(true)
		slowest := []time.Duration{control[len(control)-1], during[len(during)-1]}
		p999 := []time.Duration{control[len(control)*999/1000], during[len(during)*999/1000]}
		t.Logf("slowest of %d INSERTs: %s (p99.9 %s); of %d while %d leaves were made, %d emptied, %d dropped: %s (p99.9 %s)",
			len(control), slowest[0], p999[0], len(during), r.Made, r.Emptied, r.Dropped, slowest[1], p999[1])
		if slowest[1] <= slowest[0]+insertLimit && r.Made > 0 && r.Emptied > 0 && r.Dropped > 0 {
			return
		}
		require.Less(t, round, rounds, "in each round an INSERT waited more than %s longer than without, or no leaf was "+
			"made, emptied and dropped", insertLimit)
	}
}
