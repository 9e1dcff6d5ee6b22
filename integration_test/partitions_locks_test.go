package integration_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// open begins a transaction and runs a statement in it; it ends when end is called or the test ends.
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

const (
	emptied      = "emptied, but the outbox is in use: the next run drops it"
	writtenAgain = "emptied, but written to again: the next run tries again"
)

// TestAutovacuumGivesWay: an autovacuum that takes minutes on the default partition does not prevent a run from
// creating and dropping partitions. It yields only to a lock that has waited for deadlock_timeout, and no writer waits
// that long.
func TestAutovacuumGivesWay(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t, "autovacuum_naptime=1s", "autovacuum_max_workers=1",
		"deadlock_timeout=5s")
	intoPartitions(t, h, 50, 100)
	h.writeRows(t, 5000, settledLongAgo)
	h.exec(t, `ALTER TABLE outbox_default SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0,
		autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)`)
	h.exec(t, `UPDATE outbox SET attempts = 1`) // dead rows, which only a slow vacuum finds
	const vacuuming = `SELECT count(*) FROM pg_stat_progress_vacuum WHERE relid = 'outbox_default'::regclass`
	eventually(t, func() bool { return h.count(t, vacuuming) == 1 }, "autovacuum is processing the default partition")
	r := h.maintain(t)
	require.Empty(t, r.NotMade)
	require.Len(t, r.Made, 8)
	require.Equal(t, []string{"outbox_p0", "outbox_p1"}, r.Dropped)
}

// TestMaintenanceWaitsForNobody: open transactions use the outbox while others write. The run keeps partitions in use,
// and no one waits for it longer than it briefly waits for its own lock.
func TestMaintenanceWaitsForNobody(t *testing.T) {
	extended(t)
	t.Parallel()
	const inUse = "in use: the next run tries again"
	for _, c := range []struct{ name, holds, notMade, kept string }{
		{"writer", `INSERT INTO outbox (uuid, topic, payload) VALUES ('w', 't', 'p')`, "", emptied},
		{"reader of all", `SELECT count(*) FROM outbox`, inUse, inUse},
		{"rewrite of a partition", `LOCK TABLE outbox_p0 IN ACCESS EXCLUSIVE MODE`, "", inUse},
		{"change of the outbox", `LOCK TABLE ONLY outbox IN SHARE UPDATE EXCLUSIVE MODE`, inUse, emptied},
		{"nobody", `SELECT 1`, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newPartitioned(t, 50, 1_000_000, 2_000_000)
			h.writeRows(t, 120, settledLongAgo)
			busy := newPgxHandle(t, h.url)
			var written, slowest atomic.Int64 // number of inserts, and the longest one in nanoseconds
			var writing sync.WaitGroup
			var stopped atomic.Bool
			t.Cleanup(func() { stopped.Store(true); writing.Wait() })
			for range 4 {
				writing.Go(func() {
					for !stopped.Load() {
						begun := time.Now()
						_, err := busy.pool.Exec(context.Background(), `
							INSERT INTO outbox (uuid, topic, payload, published_at) VALUES ('b', 't', 'p', now())`)
						if !assert.NoError(t, err) {
							return
						}
						slowest.Store(max(slowest.Load(), int64(time.Since(begun))))
						written.Add(1)
						time.Sleep(20 * time.Millisecond) // writers' pace
					}
				})
			}
			eventually(t, func() bool { return written.Load() > 20 }, "the writers write")
			end := h.open(t, c.holds)
			slowest.Store(0)
			r := h.maintain(t)
			t.Logf("the slowest insert took %s, of %d", time.Duration(slowest.Load()), written.Load())
			assert.Less(t, time.Duration(slowest.Load()), time.Second)
			assert.Equal(t, c.notMade, r.NotMade)
			if c.notMade == "" {
				assert.Len(t, r.Made, 7)
			}
			if c.kept != "" {
				assert.Equal(t, map[string]string{"outbox_p0": c.kept}, r.Kept)
				if c.notMade != "" || c.kept == inUse {
					assert.Equal(t, "in use: outbox_p0", value[string](t, h, `SELECT replace(outcome, 'outbox_default, ', '')
						FROM outbox_audit WHERE action = 'partitions' AND ended_at IS NOT NULL`))
				}
				if c.kept == emptied {
					assert.Equal(t, int64(49), r.Removed)
					list, err := newAdmin(t, h).Partitions(t.Context())
					require.NoError(t, err)
					assert.Equal(t, "empty", list[0].State)
				}
				end()
				r = h.maintain(t)
			}
			require.Equal(t, []string{"outbox_p0"}, r.Dropped, "the next run finishes the work")
			require.GreaterOrEqual(t, r.Ahead, 8)
		})
	}
}

// TestChangesBetweenReadAndLock: a partition is read and then locked. In between, a message may become pending, be
// published, or be written to the emptied partition; a transaction may be in progress; an operator may detach the
// partition. No such message or partition is removed.
func TestChangesBetweenReadAndLock(t *testing.T) {
	t.Parallel()
	const reserve, lock, drop = "outbox_p0 IN SHARE UPDATE", "outbox_p0 IN ACCESS EXCLUSIVE",
		`"outbox" IN ACCESS EXCLUSIVE`
	const late = `INSERT INTO outbox (id, uuid, topic, payload) VALUES (0, 'late', 't', 'p')`
	for _, c := range []struct{ before, change, why string }{
		{lock, `UPDATE outbox SET published_at = NULL WHERE id = 8`, "1 pending"},
		{lock, `UPDATE outbox SET published_at = NULL, due_at = now() + interval '1 h', attempts = 1 WHERE id = 8`,
			"1 pending"},
		{lock, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id = 8`, "1 dead"},
		{lock, late, "1 pending"},
		{drop, late, writtenAgain},
		{lock, `UPDATE outbox SET published_at = now() WHERE id = 8`, "messages are younger than the retention"},
		{reserve, `ALTER TABLE outbox DETACH PARTITION outbox_p0`, "no longer this partition of the outbox"},
	} {
		name, _, _ := strings.Cut(c.before+" "+c.change, " WHERE")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPartitioned(t, nine(100)...)
			h.writeRows(t, 120, settledLongAgo)
			acted := false
			r := watchedHandle(t, h, func(statement string, sent bool) bool {
				if !sent && !acted && strings.Contains(statement, c.before) {
					acted = true
					h.exec(t, c.change)
				}
				return true
			}).maintain(t)
			require.True(t, acted)
			require.Empty(t, r.Dropped)
			require.Equal(t, map[string]string{"outbox_p0": c.why}, r.Kept)
			require.NotZero(t, h.count(t, `SELECT count(*) FROM outbox_p0`))
		})
	}
}

// TestDeletedRowsAreNotReadUnderTheLock: a partition whose rows were deleted one by one has no messages, but many index
// entries to scan. The run truncates it before it locks the outbox, because all writers wait for that lock. If another
// row was inserted in the meantime, the partition stays, even if that row is deleted too.
func TestDeletedRowsAreNotReadUnderTheLock(t *testing.T) {
	t.Parallel()
	h := newPartitioned(t, nine(100)...)
	h.writeRows(t, 220, settledLongAgo)
	h.exec(t, `DELETE FROM outbox WHERE id < 200`)
	sizes := []int64{}
	r := watchedHandle(t, h, func(statement string, sent bool) bool {
		if !sent && strings.Contains(statement, `"outbox" IN ACCESS EXCLUSIVE`) {
			sizes = append(sizes, column[int64](t, h, `SELECT pg_relation_size(c.oid) FROM pg_class c
				WHERE relname IN ('outbox_p0', 'outbox_p1')`)...)
			h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (101, 'late', 't', 'p')`)
			h.exec(t, `DELETE FROM outbox WHERE id = 101`)
		}
		return true
	}).maintain(t)
	require.Equal(t, []int64{0, 0}, sizes)
	require.Zero(t, r.Removed)
	require.Equal(t, []string{"outbox_p0"}, r.Dropped)
	require.Equal(t, map[string]string{"outbox_p1": writtenAgain}, r.Kept)
	require.Equal(t, []string{"outbox_p1"}, h.maintain(t).Dropped)
}

// TestMaintainPartitionsTwice runs several concurrently: each partition is created and dropped once.
func TestMaintainPartitionsTwice(t *testing.T) {
	extended(t)
	t.Parallel()
	var ends []int64
	for i := range int64(6) {
		ends = append(ends, 10*(i+1))
	}
	h := newPartitioned(t, ends...)
	h.writeRows(t, 55, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 33`)
	results := make([]admin.PartitionsResult, 4)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			var err error
			results[i], err = h.tryMaintain(t)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	seen := map[string]int{}
	for _, r := range append(results, h.maintain(t)) {
		for _, d := range did(r) {
			seen[d]++
		}
	}
	for i := range 5 {
		want := 1
		if i == 3 {
			want = 0
		}
		require.Equal(t, want, seen[fmt.Sprint("dropped outbox_p", i)], seen)
	}
	for i := 6; i < 14; i++ {
		require.Equal(t, 1, seen[fmt.Sprint("made outbox_p", i)], seen)
	}
	require.Equal(t, 2+8+1, h.count(t, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass`))
	require.Equal(t, 1, h.count(t, pendingIn))
}

// TestMaintenanceKilledAtEveryStep cuts the connection as soon as the server has received one of its statements. No row
// that must stay is lost, and the next run completes the work.
func TestMaintenanceKilledAtEveryStep(t *testing.T) {
	extended(t)
	t.Parallel()
	prepared := func() handle {
		h := newPartitioned(t, 10, 20, 30, 40)
		h.writeRows(t, 35, settledLongAgo)
		h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (60, 'in the default', 't', 'p')`)
		h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 15`)
		return h
	}
	var statements []string
	watchedHandle(t, prepared(), func(s string, sent bool) bool {
		if sent {
			statements = append(statements, s)
		}
		return true
	}).maintain(t)
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
		}).tryMaintain(t)
		require.Error(t, err, statement)
		require.Equal(t, 2, h.count(t, pendingIn), "after %s", statement)
		h.reaches(t, 0, "the server has noticed",
			`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'watched'
				AND datname = current_database() AND state <> 'idle'`)
		h.maintain(t)
		require.Equal(t, []int64{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 30, 31, 32, 33, 34, 35, 60}, h.ids(t, "outbox"),
			"after %s", statement)
		require.Equal(t, 2+8+1, h.count(t, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass`),
			"after %s", statement)
		require.Equal(t, 0, h.count(t, `SELECT count(*) FROM pg_class WHERE relname ~ '^outbox_p[0-9]+$'
			AND NOT relispartition`), "after %s", statement)
		require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_empty_between'`))
	}
}

// pgDump returns the path of pg_dump for this server, if it is installed.
func pgDump(t testing.TB, h handle) string {
	t.Helper()
	major := h.count(t, `SELECT current_setting('server_version_num')::int / 10000`)
	for ; major < 30; major++ {
		for _, pattern := range []string{"/usr/lib/postgresql/%d/bin/pg_dump", "/usr/pgsql-%d/bin/pg_dump"} {
			if path := fmt.Sprintf(pattern, major); fileExists(path) {
				return path
			}
		}
	}
	return ""
}

// TestEveryDumpHasThePendingMessages: a running dump keeps partitions in use. A dump that began before a partition was
// dropped, and locks too late, still has all pending messages. So does a snapshot.
func TestEveryDumpHasThePendingMessages(t *testing.T) {
	t.Parallel()
	h := newPartitioned(t, nine(100)...)
	h.writeRows(t, 250, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id IN (150, 240)`)
	tx, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT count(*) FROM pg_class`) // it has a snapshot, but no lock on the outbox
	require.NoError(t, err)

	end := h.open(t, `LOCK TABLE outbox IN ACCESS SHARE MODE`) // as pg_dump first does with all partitions
	r := h.maintain(t)
	require.Empty(t, r.Dropped)
	require.Contains(t, did(r), "kept outbox_p0: in use: the next run tries again")
	end()
	r = h.maintain(t)
	require.Equal(t, []string{"outbox_p0"}, r.Dropped)
	require.Contains(t, did(r), "kept outbox_p1: 1 pending")
	var n int
	require.NoError(t, tx.QueryRow(t.Context(), pendingIn).Scan(&n))
	require.Equal(t, 2, n, "an earlier snapshot sees the pending messages")
	require.NoError(t, tx.Rollback(t.Context()))

	program := pgDump(t, h)
	if program == "" {
		t.Skip("no pg_dump for this server")
	}
	h.exec(t, `UPDATE outbox SET `+settledLongAgo+` WHERE id = 150`)
	type dumped struct {
		text string
		err  error
	}
	dumps := make(chan dumped, 1)
	waited := false
	watchedHandle(t, h, func(statement string, sent bool) bool { // the dump begins while the locks are held
		if sent || waited || !strings.HasPrefix(statement, "DROP TABLE public.outbox_p1") {
			return true
		}
		go func() {
			out, err := exec.CommandContext(t.Context(), program, "--data-only", "--inserts", "-t", "outbox*",
				h.url).CombinedOutput()
			dumps <- dumped{string(out), err}
		}()
		for deadline := time.Now().Add(4 * time.Second); !waited && time.Now().Before(deadline); {
			waited = h.count(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_dump'
				AND wait_event_type = 'Lock' AND datname = current_database()`) > 0
		}
		return true
	}).maintain(t)
	d := within(t, "the dump", dumps)
	if d.err != nil {
		require.Regexp(t, `outbox_p1|OID`, d.text, "a dump fails with an error, and is repeated")
		return
	}
	require.Regexp(t, `\bu240\b`, d.text)
}

// TestLockedPartition: a partition that is being rewritten, whose index is being rebuilt, or that is locked by a
// prepared transaction, delays neither Check nor a run, which continues with the others. Doctor names the session that
// holds the lock.
func TestLockedPartition(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPartitioned(t, 10, 20, 30, 40)
	h.writeRows(t, 25, settledLongAgo)
	setOn(t, h, "lock_timeout = 100")
	h.pool.Reset()
	h.exec(t, `ALTER TABLE outbox_default SET (autovacuum_vacuum_scale_factor = 0)`)
	h.maintain(t, func(c *admin.PartitionsConfig) { c.Retention = 0 })
	const kept = "kept outbox_p0: in use: the next run tries again"
	for _, statement := range []string{
		`LOCK TABLE outbox_p0 IN ACCESS EXCLUSIVE MODE`, `REINDEX INDEX outbox_p0_pkey`,
	} {
		holder := begin(t, h, "BEGIN", statement)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		assert.NoError(t, checkSchema(ctx, h.db), statement)
		f := ails(t, h, "table_lock")
		assert.Contains(t, f.Evidence, "table outbox_p0 ")
		assert.Contains(t, f.Cure, fmt.Sprintf("pg_terminate_backend(%d)", holder.PgConn().PID()))
		assert.Contains(t, did(h.maintain(t, func(c *admin.PartitionsConfig) { c.DryRun = true })), kept, statement)
		assert.Contains(t, did(h.maintain(t)), kept, statement)
		_, err := holder.Exec(t.Context(), "ROLLBACK")
		require.NoError(t, err)
	}
	require.Equal(t, []string{"outbox_p0"}, h.maintain(t).Dropped)
	execScript(t, h, `CREATE TABLE split PARTITION OF outbox FOR VALUES FROM (1000) TO (2000) PARTITION BY RANGE (id);
		CREATE TABLE leaf PARTITION OF split FOR VALUES FROM (1000) TO (2000)`)
	end := h.open(t, `LOCK TABLE leaf IN ACCESS EXCLUSIVE MODE`)
	assert.Contains(t, ails(t, h, "table_lock").Evidence, "table leaf ")
	end()
	h.exec(t, `DROP TABLE split`)
	prepared := "partition of " + strings.TrimPrefix(role(h), "/")
	begin(t, h, "BEGIN", "LOCK TABLE outbox_p2 IN ACCESS EXCLUSIVE MODE", "PREPARE TRANSACTION '"+prepared+"'")
	t.Cleanup(func() { _, _ = h.pool.Exec(context.Background(), "ROLLBACK PREPARED '"+prepared+"'") })
	h.exec(t, `SELECT setval('outbox_id_seq', 30)`)
	require.Equal(t, []string{"kept outbox_p2: in use: the next run tries again"}, did(h.maintain(t))[1:])
	h.exec(t, "ROLLBACK PREPARED '"+prepared+"'")
	require.Equal(t, []string{"outbox_p2"}, h.maintain(t).Dropped)
}

// TestLockedOutbox: Check waits only briefly, and names the session that holds the lock.
func TestLockedOutbox(t *testing.T) {
	extended(t)
	h := onPgx(t)
	holder := begin(t, h, "BEGIN", `LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE`)
	pid := holder.PgConn().PID()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := schemaProblems(ctx, h.db)
	if err == nil { // before PostgreSQL 17 catalog functions do not wait for the table
		require.Contains(t, ails(t, h, "table_lock").Cure, fmt.Sprintf("pg_terminate_backend(%d)", pid))
		return
	}
	require.ErrorContains(t, err, fmt.Sprintf("session %d (", pid))
	require.ErrorContains(t, err, `has locked table outbox, or waits for that: wait if that is planned, or end it: `+
		fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
	_, err = holder.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	found, err := schemaProblems(ctx, h.db)
	require.NoError(t, err)
	require.Empty(t, found)
}

// TestCheckWaitsForNoOtherTable: other tables with check constraints are ignored, even while locked.
func TestCheckWaitsForNoOtherTable(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `CREATE TABLE other (n bigint CONSTRAINT other_bound CHECK (n < 5))`)
	h.open(t, `LOCK TABLE other IN ACCESS EXCLUSIVE MODE`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, checkSchema(ctx, h.db))
}
