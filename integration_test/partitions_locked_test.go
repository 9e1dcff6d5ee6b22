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

// holdWhile keeps a transaction open after running a statement, until end is called.
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

// TestLockedPartition: a partition that is being rewritten, has an index being rebuilt, or is locked by a prepared
// transaction delays neither Check nor a run, which continues with the others. Inspect, which must read the outbox,
// names the session that holds the lock.
func TestLockedPartition(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPartitioned(t, 10, 20, 30, 40)
	h.writeRows(t, 25, settledLongAgo)
	setForDatabase(t, h, `lock_timeout = 100`)
	h.pool.Reset()
	h.exec(t, `ALTER TABLE outbox_default SET (autovacuum_vacuum_scale_factor = 0)`)
	h.maintain(t, func(c *admin.PartitionsConfig) { c.Retention = 0 })
	const kept = "kept outbox_p0: in use: the next run tries again"
	for _, statement := range []string{
		`LOCK TABLE outbox_p0 IN ACCESS EXCLUSIVE MODE`, `REINDEX INDEX outbox_p0_pkey`,
	} {
		pid, end := holdWhile(t, h, statement)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		assert.NoError(t, schema.Check(ctx, h.db), statement)
		found, err := schema.Inspect(ctx, h.db)
		if assert.NoError(t, err, statement) && assert.Len(t, found, 1, statement) {
			assert.True(t, found[0].Warning)
			assert.Contains(t, found[0].Found, fmt.Sprintf("could not be read: session %d (", pid))
			assert.Contains(t, found[0].Cure, fmt.Sprintf("pg_terminate_backend(%d)", pid))
		}
		assert.Contains(t, did(h.maintain(t, func(c *admin.PartitionsConfig) { c.DryRun = true })), kept, statement)
		assert.Contains(t, did(h.maintain(t)), kept, statement)
		end()
	}
	require.Equal(t, []string{"outbox_p0"}, h.maintain(t).Dropped)
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
	pid, end := holdWhile(t, h, `LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found, err := schema.Inspect(ctx, h.db)
	if err == nil { // since PostgreSQL 17 catalog functions wait for the table
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

// TestCheckWaitsForNoOtherTable: other tables with check constraints are ignored, even while locked.
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
