package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// open begins a transaction in which a statement has run, until the test ends or the function is called.
func (h handle) open(t testing.TB, statement string) (end func()) {
	t.Helper()
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), statement)
	require.NoError(t, err)
	end = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(end)
	return end
}

// TestRollWaitsForNobody has transactions that last use the leaves, while others write. The roll leaves what is in use,
// is never seen waiting, and so none waits behind it.
func TestRollWaitsForNobody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, holds string
		want        []string
	}{
		{"writer of the leaf", `UPDATE outbox SET attempts = 1 WHERE id = 3`,
			[]string{"made outbox_p5", "made outbox_p6", "kept outbox_p0", "emptied outbox_p1"}},
		{"writer", `INSERT INTO outbox (uuid, topic, payload) VALUES ('w', 't', 'p')`,
			[]string{"made outbox_p5", "made outbox_p6", "emptied outbox_p0", "emptied outbox_p1"}},
		{"reader of all", `SELECT count(*) FROM outbox`,
			[]string{"kept \"outbox\"", "kept outbox_p0", "kept outbox_p1"}},
		{"vacuum of the leaf", `LOCK TABLE ONLY outbox_p0 IN SHARE UPDATE EXCLUSIVE MODE`,
			[]string{"made outbox_p5", "made outbox_p6", "kept outbox_p0", "emptied outbox_p1"}},
		{"vacuum of its large values", `DO $$ BEGIN EXECUTE (SELECT 'SELECT FROM ' || reltoastrelid::regclass FROM pg_class
			WHERE oid = 'outbox_p0'::regclass); END $$`, []string{"made outbox_p5", "made outbox_p6", "kept outbox_p0", "emptied outbox_p1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "writer of the leaf" && c.name != "reader of all" {
				extended(t)
			}
			t.Parallel()
			h := newLeaves(t, 50, 100, 1_000_000, 2_000_000, 3_000_000)
			h.writeRows(t, 120, settledLongAgo)
			busy := pgxHandle(t, "busy", h.url, func(cfg *pgxpool.Config) {
				cfg.MaxConns = 12
				cfg.ConnConfig.RuntimeParams["application_name"] = "busy"
			})
			var writing sync.WaitGroup
			var stop atomic.Bool
			var inserted atomic.Int64
			defer writing.Wait()
			defer stop.Store(true)
			for range 10 {
				writing.Go(func() {
					for !stop.Load() {
						_, err := busy.pool.Exec(context.Background(), `INSERT INTO outbox (uuid, topic, payload, published_at)
							VALUES ('b', 't', 'p', now())`)
						if !assert.NoError(t, err) {
							return
						}
						inserted.Add(1)
						time.Sleep(20 * time.Millisecond) // their pace
					}
				})
			}
			eventually(t, func() bool { return inserted.Load() > 20 }, "the writers write")
			end := h.open(t, c.holds)
			var locked atomic.Int64 // how often the leaf was
			roller := watchedHandle(t, h, func(s string, sent bool) bool {
				if sent && strings.HasPrefix(s, "TRUNCATE ONLY public.outbox_p0") {
					locked.Add(1)
				}
				return true
			})
			// What waits for a lock on a relation, while the roll runs.
			waits := map[string]int{}
			watching, watched := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(watched)
				for {
					select {
					case <-watching:
						return
					default:
					}
					for _, who := range column[string](t, h, `SELECT application_name || ' ' || left(query, 40) FROM pg_stat_activity
						WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'relation'`) {
						waits[who]++
					}
				}
			}()
			before := inserted.Load()
			r := roller.roll(t)
			close(watching)
			<-watched
			require.Equal(t, c.want, did(r))
			require.Greater(t, inserted.Load(), before, "nothing was written beside the roll; seen waiting: %v", waits)
			require.LessOrEqual(t, locked.Load(), int64(3), "the leaf is locked again and again for what cannot be had")
			if !strings.Contains(c.name, "large") { // that lock has no name to ask for it
				require.Empty(t, waits, "the roll waited, or another one for it")
			}
			end()
			r = h.roll(t)
			for _, l := range r.Leaves {
				require.NotContains(t, l.Why, "in use", "the next run does what this one has left")
			}
		})
	}
}

// TestRollTwice rolls with several at once: each leaf is emptied, made and dropped once.
func TestRollTwice(t *testing.T) {
	extended(t)
	t.Parallel()
	var ends []int64
	for i := range int64(12) {
		ends = append(ends, 10*(i+1))
	}
	h := newLeaves(t, ends...)
	h.writeRows(t, 115, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id % 10 = 3`)
	results := make([]admin.RollResult, 4)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			var err error
			results[i], err = h.tryRoll(t)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	seen := map[string]int{}
	for _, r := range append(results, h.roll(t)) {
		for _, d := range did(r) {
			seen[d]++
		}
	}
	for i := range 11 {
		require.Equal(t, 1, seen[fmt.Sprint("emptied outbox_p", i)], seen)
	}
	for i := 12; i < 15; i++ {
		require.Equal(t, 1, seen[fmt.Sprint("made outbox_p", i)], seen)
	}
	require.Equal(t, 16, h.count(t, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass`))
	require.Equal(t, 12, h.count(t, pendingIn))
}

// TestRollKilledAtEveryStep cuts the connection of a roll as soon as the server has one of its statements. What must
// stay is there, and the next roll does the rest. OUTBOX_LONG cuts at each of them, and not at each fourth.
func TestRollKilledAtEveryStep(t *testing.T) {
	extended(t)
	t.Parallel()
	prepared := func() handle {
		h := newLeaves(t, 10, 20, 30, 40, 50, 60, 70)
		h.writeRows(t, 35, settledLongAgo)
		h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 15`)
		h.exec(t, `TRUNCATE outbox_p0`)
		return h
	}
	var statements []string
	watchedHandle(t, prepared(), func(s string, sent bool) bool {
		if sent {
			statements = append(statements, s)
		}
		return true
	}).roll(t)
	require.Greater(t, len(statements), 20)
	for _, cut := range someOf(t, len(statements)) {
		statement := statements[cut]
		h := prepared()
		n := 0
		_, err := watchedHandle(t, h, func(_ string, sent bool) bool {
			if sent {
				n++
			}
			return !sent || n != cut+1
		}).tryRoll(t)
		require.Error(t, err, statement)
		require.Equal(t, 1, h.count(t, pendingIn), "after %s", statement)
		require.Equal(t, 1, h.count(t, `SELECT count(*) FROM outbox WHERE id = 15`), "after %s", statement)
		eventually(t, func() bool {
			return h.count(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'watched'
				AND datname = current_database() AND state <> 'idle'`) == 0
		}, "the server has noticed")
		h.roll(t)
		require.Equal(t, []int64{15, 30, 31, 32, 33, 34, 35}, h.ids(t, "outbox"), "after %s", statement)
		require.Equal(t, 8, h.count(t, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass`),
			"after %s", statement)
		require.Equal(t, 0, h.count(t, `SELECT count(*) FROM pg_class WHERE relname ~ '^outbox_p[0-9]+$'
			AND NOT relispartition`), "after %s", statement)
	}
}
