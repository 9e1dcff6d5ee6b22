package integration_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

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
