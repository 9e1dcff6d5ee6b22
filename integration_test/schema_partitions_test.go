package integration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestMigrateInPartitions: the outbox is made in partitions, passes Check without a word, and is used as any other.
func TestMigrateInPartitions(t *testing.T) {
	t.Parallel()
	cfg := schema.MigrateConfig{PartitionSize: 10}
	overEach(t, newDatabase(t), func(t *testing.T, h handle) {
		for _, names := range []sqltext.Tables{{Schema: "in-" + h.name}, {Schema: "in-" + h.name, Outbox: "Out-box"}} {
			h := h.with(t, names)
			_, err := schema.Migrate(t.Context(), h.db, cfg)
			require.NoError(t, err, h.name)
			ran, err := schema.Migrate(t.Context(), h.db, cfg)
			require.NoError(t, err, h.name)
			assert.Empty(t, ran)
			ran, err = schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
			require.NoError(t, err, "who does not know of partitions leaves them alone")
			assert.Empty(t, ran)
			found, err := schema.Inspect(t.Context(), h.db)
			require.NoError(t, err)
			assert.Empty(t, found)
			usable(t, h, names)
		}
	})
	h := newPgxHandle(t, newDatabase(t))
	_, err := schema.Migrate(t.Context(), h.db, cfg)
	require.NoError(t, err)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload) SELECT i, 'events', '' FROM generate_series(1, 60) i")
	assert.Equal(t, []string{
		"outbox_default 11", "outbox_p0 9", "outbox_p1 10", "outbox_p2 10", "outbox_p3 10", "outbox_p4 10",
	},
		column[string](t, h, "SELECT tableoid::regclass || ' ' || count(*) FROM outbox GROUP BY tableoid ORDER BY 1"))
	for _, size := range []int64{-1, 1 << 60} {
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: size})
		require.ErrorContains(t, err, "MigrateConfig.PartitionSize")
		_, err = schema.Files(schema.FilesConfig{Format: schema.Plain, PartitionSize: size})
		require.ErrorContains(t, err, "FilesConfig.PartitionSize")
	}
	plain := newPgxHandle(t, newDatabase(t))
	_, err = schema.Migrate(t.Context(), plain.db, schema.MigrateConfig{})
	require.NoError(t, err)
	_, err = schema.Migrate(t.Context(), plain.db, cfg)
	require.ErrorContains(t, err, "the outbox is one table")
}

// TestFilesInPartitions: what the files make is what Migrate makes.
func TestFilesInPartitions(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	files, err := schema.Files(schema.FilesConfig{Format: schema.Plain, PartitionSize: 10})
	require.NoError(t, err)
	for _, f := range files {
		_, err := h.pool.Exec(t.Context(), f.Content)
		require.NoError(t, err, f.Name)
	}
	found, err := schema.Inspect(t.Context(), h.db)
	require.NoError(t, err)
	assert.Empty(t, found)
	assert.Equal(t, 6, h.count(t, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass"))
}

// TestCheckOfPartitions: partitions are looked at one by one, and the cures can be run.
func TestCheckOfPartitions(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: 10})
	require.NoError(t, err)
	h.exec(t, "ALTER TABLE outbox_p1 RESET (autovacuum_vacuum_scale_factor)")
	h.exec(t, "ALTER TABLE outbox_default SET (autovacuum_enabled = off)")
	h.exec(t, "DROP INDEX outbox_held")
	found, err := schema.Inspect(t.Context(), h.db)
	require.NoError(t, err)
	require.Len(t, found, 3)
	var objects []string
	for _, p := range found {
		objects = append(objects, p.Object)
		h.exec(t, p.Cure)
	}
	assert.ElementsMatch(t, []string{
		`table public.outbox_p1`, `table public.outbox_default`, `index "outbox_held"`,
	}, objects)
	found, err = schema.Inspect(t.Context(), h.db)
	require.NoError(t, err)
	assert.Empty(t, found)
}
