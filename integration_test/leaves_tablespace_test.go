package integration_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/schema"
)

// tablespace makes a tablespace that goes away with the test, after the databases that are made later.
func tablespace(t *testing.T, name string) {
	t.Helper()
	h := pgxHandle(t, "pgx", postgresServer(t).URL(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["allow_in_place_tablespaces"] = "on"
	})
	h.exec(t, `CREATE TABLESPACE `+name+` LOCATION ''`)
	t.Cleanup(func() {
		_, err := (*core.DB)(h.db).Exec(context.Background(), `DROP TABLESPACE `+name)
		require.NoError(t, err)
	})
}

// placed says in which tablespaces the outbox and its leaves are, or one leaf, with their indexes.
func placed(t *testing.T, h handle, leaf string) []string {
	t.Helper()
	return column[string](t, h, `WITH parts AS (
		SELECT c.* FROM pg_class c WHERE c.relname ~ '^outbox(_p[0-9]+|_default)?$' AND c.relname ~ $1)
		SELECT 'table ' || coalesce(s.spcname, 'usual') FROM parts c LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
		UNION SELECT CASE WHEN x.indisprimary THEN 'key ' ELSE 'index ' END || coalesce(s.spcname, 'usual')
		  FROM parts p JOIN pg_index x ON x.indrelid = p.oid JOIN pg_class c ON c.oid = x.indexrelid
		  LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace ORDER BY 1`, leaf)
}

// TestLeavesFollowTheTablespaceOfTheOutbox has a role that makes its tables elsewhere. What a roll or Partition makes
// is where the outbox is, and each index where that of the outbox is, as CREATE TABLE ... PARTITION OF has it.
func TestLeavesFollowTheTablespaceOfTheOutbox(t *testing.T) {
	extended(t)
	t.Parallel()
	tablespace(t, "leaves_role")
	tablespace(t, "leaves_fast")
	const table = `ALTER TABLE outbox SET TABLESPACE leaves_fast;`
	const key = `ALTER INDEX outbox_pkey SET TABLESPACE leaves_fast;`
	for _, c := range []struct {
		moved string
		want  []string
	}{
		{"SELECT", []string{"index usual", "key usual", "table usual"}},
		{table, []string{"index usual", "key usual", "table leaves_fast"}},
		{key, []string{"index usual", "key leaves_fast", "table usual"}},
		{table + key, []string{"index usual", "key leaves_fast", "table leaves_fast"}},
	} {
		for _, role := range []string{"leaves_role", "pg_default"} {
			h := newPgxHandle(t, newDatabase(t))
			_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
			require.NoError(t, err)
			execScript(t, h, c.moved)
			setForDatabase(t, h, `default_tablespace = `+role)
			h = newPgxHandle(t, h.url)
			require.NoError(t, schema.Partition(t.Context(), h.db, schema.PartitionConfig{PartitionSize: 100}))
			require.Equal(t, c.want, placed(t, h, ""), "partition by %s, %s", role, c.moved)

			h.exec(t, `SELECT setval('outbox_id_seq', 250)`)
			require.Equal(t, []string{"made outbox_p5"}, did(h.roll(t)))
			require.Equal(t, c.want, placed(t, h, "5$"), "roll by %s, %s", role, c.moved)
		}
	}
}

// TestMigrateInPartitionsIntoATablespace: the outbox is made where the role makes its tables, which is the usual place
// also if the role names that.
func TestMigrateInPartitionsIntoATablespace(t *testing.T) {
	extended(t)
	t.Parallel()
	tablespace(t, "leaves_migrated")
	for role, want := range map[string][]string{
		"leaves_migrated": {"index leaves_migrated", "key leaves_migrated", "table leaves_migrated"},
		"pg_default":      {"index usual", "key usual", "table usual"},
	} {
		h := newPgxHandle(t, newDatabase(t))
		setForDatabase(t, h, `default_tablespace = `+role)
		h = newPgxHandle(t, h.url)
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: 100})
		require.NoError(t, err, role)
		require.Equal(t, want, placed(t, h, ""), role)
	}
}
