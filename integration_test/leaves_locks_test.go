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
	"github.com/millrace-go/watermill-outbox/schema"
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

// holdWhile keeps a transaction open that has run a statement, until the function that it returns is called.
func holdWhile(t *testing.T, h handle, statement string) (pid int, end func()) {
	t.Helper()
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), statement)
	require.NoError(t, err, statement)
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
	return pid, func() { require.NoError(t, tx.Rollback(t.Context())) }
}

// TestLockedLeaf: a leaf that is rewritten, or an index of it, holds neither Check nor a roll up, which goes on with
// the other leaves, does not take it for empty, and says that no leaf is made only if one is needed. Inspect, which has
// to read the outbox, says who has it.
func TestLockedLeaf(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10, 20, 30, 40, 50, 60, 70, 80, 90)
	h.writeRows(t, 45, settledLongAgo)
	setForDatabase(t, h, `lock_timeout = 100`)
	h.pool.Reset()
	h.exec(t, `ALTER TABLE outbox_default SET (autovacuum_vacuum_scale_factor = 0)`)
	for _, c := range []struct{ statement, kept string }{
		{`LOCK TABLE outbox_p0 IN ACCESS EXCLUSIVE MODE`, "outbox_p0"},
		{`REINDEX INDEX outbox_p0_pkey`, "outbox_p0"},
		{`LOCK TABLE outbox_default IN ACCESS EXCLUSIVE MODE`, "outbox_default"},
	} {
		pid, end := holdWhile(t, h, c.statement)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		assert.NoError(t, schema.Check(ctx, h.db), c.statement)
		found, err := schema.Inspect(ctx, h.db)
		if assert.NoError(t, err, c.statement) && assert.Len(t, found, 1, c.statement) {
			assert.True(t, found[0].Warning)
			assert.Contains(t, found[0].Found, fmt.Sprintf("could not be read: session %d (", pid))
			assert.Contains(t, found[0].Cure, fmt.Sprintf("pg_terminate_backend(%d)", pid))
		}
		for _, dry := range []bool{true, false} {
			r, err := h.tryRoll(t, func(cfg *admin.RollConfig) { cfg.DryRun = dry })
			assert.NoError(t, err, c.statement)
			assert.Equal(t, 1, strings.Count(strings.Join(did(r), "\n")+"\n", "kept "+c.kept+"\n"), c.statement)
			assert.NotContains(t, did(r), "emptied "+c.kept, c.statement)
			assert.NotContains(t, did(r), "dropped "+c.kept, c.statement)
			assert.Empty(t, r.NotMade, c.statement)
			assert.Positive(t, r.Ahead)
		}
		said := ctl{t: t, url: h.url}.run("roll", "--retention", "1d", "--yes", "--actor", "me")
		assert.Equal(t, 0, said.code, said.err)
		end()
	}
	require.Equal(t, []int64{40, 41, 42, 43, 44, 45}, h.ids(t, "outbox"), "the others were emptied, in the end p0 too")
	h.exec(t, `SELECT setval('outbox_id_seq', 60)`)
	_, end := holdWhile(t, h, `LOCK TABLE outbox_default IN ACCESS EXCLUSIVE MODE`)
	require.Equal(t, "it is in use: the next run retries", h.roll(t).NotMade)
	end()
	require.Empty(t, h.roll(t).NotMade)
}

// TestLeafThatIsToBeLocked: one for which a session waits, behind a reader, is as one that it has, since others wait
// behind that. So is one that a prepared transaction has, which has no session.
func TestLeafThatIsToBeLocked(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10, 20, 30, 40, 50, 60, 70, 80)
	h.writeRows(t, 35, settledLongAgo)
	prepared := "leaf of " + strings.TrimPrefix(role(h), "/")
	begin(t, h, "BEGIN", "LOCK TABLE outbox_p1 IN ACCESS EXCLUSIVE MODE", "PREPARE TRANSACTION '"+prepared+"'")
	t.Cleanup(func() { _, _ = h.pool.Exec(context.Background(), "ROLLBACK PREPARED '"+prepared+"'") })
	_, end := holdWhile(t, h, `LOCK TABLE outbox_p0 IN ACCESS SHARE MODE`)
	rewritten := make(chan error, 1)
	go func() {
		_, err := h.pool.Exec(context.WithoutCancel(t.Context()), `VACUUM FULL outbox_p0`)
		rewritten <- err
	}()
	require.Eventually(t, func() bool {
		return h.count(t, `SELECT count(*) FROM pg_locks WHERE relation = 'outbox_p0'::regclass AND NOT granted`) > 0
	}, patience, 10*time.Millisecond)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	assert.NoError(t, schema.Check(ctx, h.db))
	a, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	for _, dry := range []bool{true, false} {
		r, err := a.RollOutbox(ctx, admin.RollConfig{Retention: 24 * time.Hour, DryRun: dry})
		assert.NoError(t, err)
		assert.Equal(t, []string{"kept outbox_p0", "kept outbox_p1", "emptied outbox_p2"}, did(r))
	}
	end()
	require.NoError(t, <-rewritten)
	h.exec(t, "ROLLBACK PREPARED '"+prepared+"'")
	require.Contains(t, did(h.roll(t)), "emptied outbox_p1")
}

// TestLockedOutbox: Check does not wait for long, and says who has the table.
func TestLockedOutbox(t *testing.T) {
	extended(t)
	h := onPgx(t)
	pid, end := holdWhile(t, h, `LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found, err := schema.Inspect(ctx, h.db)
	if err == nil { // PostgreSQL 17 has functions of the catalog wait for the table
		require.Len(t, found, 1)
		err = fmt.Errorf("%s: %s", found[0].Found, found[0].Cure)
	}
	require.ErrorContains(t, err, fmt.Sprintf("session %d (", pid))
	require.ErrorContains(t, err, `has locked table outbox, or waits for that: wait if that is planned, or end it: `+
		fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	end()
	found, err = schema.Inspect(ctx, h.db)
	require.NoError(t, err)
	require.Empty(t, found)
}

// TestCheckWaitsForNoOtherTable: whatever has checks of its own is none of its business, also while that is locked.
func TestCheckWaitsForNoOtherTable(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `CREATE TABLE other (n bigint CONSTRAINT other_bound CHECK (n < 5))`)
	_, end := holdWhile(t, h, `LOCK TABLE other IN ACCESS EXCLUSIVE MODE`)
	defer end()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, schema.Check(ctx, h.db))
}

// TestRollPromiseOfAnother has the check that a roll made on the default go away before the leaf is attached, as
// another roll does: without it the server would read the default while all others wait.
func TestRollPromiseOfAnother(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	h.writeRows(t, 300, "")
	validated := 0
	r := watchedHandle(t, h, func(s string, sent bool) bool {
		if sent && strings.Contains(s, "VALIDATE CONSTRAINT") {
			validated++
		}
		if !sent && validated == 1 && strings.Contains(s, "SHARE UPDATE EXCLUSIVE") {
			h.exec(t, `ALTER TABLE outbox_default DROP CONSTRAINT IF EXISTS outbox_default_bound`)
		}
		return true
	}).roll(t)
	require.Equal(t, []string{"made outbox_p1", "made outbox_p2", "made outbox_p3"}, did(r))
	require.Equal(t, 4, validated, "once more")
}

// TestRollIgnoresTimeouts has a role whose statements end soon, and the default and a leaf in use for longer.
func TestRollIgnoresTimeouts(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	h.writeRows(t, 300, settledLongAgo)
	use := soonCancelled(t, h)
	uses := []struct{ after, before, lock string }{ // what reads all of a table, and a lock that it waits for
		{"", "VALIDATE CONSTRAINT", `LOCK TABLE ONLY outbox_default IN SHARE UPDATE EXCLUSIVE MODE`},
		{"IN SHARE MODE", "'statement_timeout', '0'", `LOCK TABLE ONLY outbox_p0 IN ACCESS EXCLUSIVE MODE`},
	}
	short := watchedHandle(t, h, func(s string, sent bool) bool {
		switch {
		case sent || len(uses) == 0:
		case uses[0].after != "" && strings.Contains(s, uses[0].after):
			uses[0].after = ""
		case uses[0].after == "" && strings.Contains(s, uses[0].before):
			time.AfterFunc(use, h.open(t, uses[0].lock))
			uses = uses[1:]
		}
		return true
	})
	require.Subset(t, did(short.roll(t)), []string{"made outbox_p1", "emptied outbox_p0"})
	require.Empty(t, uses)
}

// TestRollKeepsThePromiseOfAnother: a roll that has nothing to make ends while another one, which began later, is about
// to attach a leaf under its check.
func TestRollKeepsThePromiseOfAnother(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	h.writeRows(t, 300, "")
	h.roll(t) // makes leaves of 100 ids up to 700
	validated, about, ended := 0, make(chan struct{}), make(chan struct{})
	isAbout := sync.OnceFunc(func() { close(about) })
	other := watchedHandle(t, h, func(s string, sent bool) bool {
		if sent && strings.Contains(s, "VALIDATE CONSTRAINT") {
			validated++
		}
		if !sent && validated == 1 && strings.Contains(s, "SHARE UPDATE EXCLUSIVE") {
			isAbout()
			<-ended
			validated++ // once
		}
		return true
	})
	var made []string
	var working sync.WaitGroup
	looked := 0
	r := watchedHandle(t, h, func(s string, sent bool) bool {
		if !sent && strings.Contains(s, "'outbox_default_bound'") {
			if looked++; looked == 2 { // whether a check is left
				working.Go(func() {
					defer isAbout()
					r, err := other.tryRoll(t, func(c *admin.RollConfig) { c.PartitionSize = 1000 })
					assert.NoError(t, err)
					made = did(r)
				})
				<-about
			}
		}
		return true
	}).roll(t, func(c *admin.RollConfig) { c.PartitionSize = 10 })
	close(ended)
	working.Wait()
	require.Empty(t, did(r))
	require.Equal(t, 2, looked)
	require.Equal(t, []string{"made outbox_p4", "made outbox_p5", "made outbox_p6", "made outbox_p7"}, made)
	require.Equal(t, 1+4, validated, "one for each leaf")
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_default_bound'`))
}

// TestRollTakesThePromiseOfADeadOneAway: what a roll that was killed left is gone after the next, also if that has no
// leaf to make.
func TestRollTakesThePromiseOfADeadOneAway(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100, 200, 300, 400, 500)
	require.NoError(t, schemaPromise(t, h))
	require.Empty(t, did(h.roll(t)))
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_default_bound'`))
}
