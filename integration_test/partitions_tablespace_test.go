package integration_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/schema"
)

// tablespace creates a tablespace for the test, dropped after the databases created later.
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

// placed returns the tablespaces of the outbox and its partitions, or of one of them, with their indexes.
func placed(t *testing.T, h handle, name string) []string {
	t.Helper()
	return column[string](t, h, `WITH parts AS (
		SELECT c.* FROM pg_class c WHERE c.relname ~ '^outbox(_p[0-9]+|_default)?$' AND c.relname ~ $1)
		SELECT 'table ' || coalesce(s.spcname, 'usual') FROM parts c LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
		UNION SELECT CASE WHEN x.indisprimary THEN 'key ' ELSE 'index ' END || coalesce(s.spcname, 'usual')
		  FROM parts p JOIN pg_index x ON x.indrelid = p.oid JOIN pg_class c ON c.oid = x.indexrelid
		  LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace ORDER BY 1`, name)
}

// TestPartitionsFollowTheTablespaceOfTheOutbox: the role's default tablespace is another one. A new partition is in the
// tablespace of the outbox, and each index in that of the outbox's index, as with CREATE TABLE ... PARTITION OF.
func TestPartitionsFollowTheTablespaceOfTheOutbox(t *testing.T) {
	extended(t)
	t.Parallel()
	tablespace(t, "partitions_role")
	tablespace(t, "partitions_fast")
	const table = `ALTER TABLE outbox SET TABLESPACE partitions_fast;`
	const key = `ALTER INDEX outbox_pkey SET TABLESPACE partitions_fast;`
	for moved, want := range map[string][]string{
		"SELECT":    {"index usual", "key usual", "table usual"},
		table:       {"index usual", "key usual", "table partitions_fast"},
		table + key: {"index usual", "key partitions_fast", "table partitions_fast"},
	} {
		h := newPgxHandle(t, newDatabase(t))
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: 10})
		require.NoError(t, err)
		execScript(t, h, moved)
		setForDatabase(t, h, `default_tablespace = partitions_role`)
		h = newPgxHandle(t, h.url)
		h.exec(t, `SELECT setval('outbox_id_seq', 15)`)
		require.Equal(t, []string{"outbox_p9"}, h.maintain(t).Made)
		require.Equal(t, want, placed(t, h, "9$"), moved)
	}
}

// TestMigrateInPartitionsIntoATablespace: the outbox is created in the role's default tablespace, which is the
// database's even if the role names that one.
func TestMigrateInPartitionsIntoATablespace(t *testing.T) {
	extended(t)
	t.Parallel()
	tablespace(t, "partitions_migrated")
	for role, want := range map[string][]string{
		"partitions_migrated": {"index partitions_migrated", "key partitions_migrated", "table partitions_migrated"},
		"pg_default":          {"index usual", "key usual", "table usual"},
	} {
		h := newPgxHandle(t, newDatabase(t))
		setForDatabase(t, h, `default_tablespace = `+role)
		h = newPgxHandle(t, h.url)
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: 100})
		require.NoError(t, err, role)
		require.Equal(t, want, placed(t, h, ""), role)
	}
}
