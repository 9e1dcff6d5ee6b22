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

// placed says in which tablespaces the outbox and its partitions are, or one of them, with their indexes.
func placed(t *testing.T, h handle, name string) []string {
	t.Helper()
	return column[string](t, h, `WITH parts AS (
		SELECT c.* FROM pg_class c WHERE c.relname ~ '^outbox(_p[0-9]+|_default)?$' AND c.relname ~ $1)
		SELECT 'table ' || coalesce(s.spcname, 'usual') FROM parts c LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
		UNION SELECT CASE WHEN x.indisprimary THEN 'key ' ELSE 'index ' END || coalesce(s.spcname, 'usual')
		  FROM parts p JOIN pg_index x ON x.indrelid = p.oid JOIN pg_class c ON c.oid = x.indexrelid
		  LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace ORDER BY 1`, name)
}

// TestPartitionsFollowTheTablespaceOfTheOutbox has a role that makes its tables elsewhere. A new partition is where the
// outbox is, and each index where that of the outbox is, as CREATE TABLE ... PARTITION OF has it.
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

// TestMigrateInPartitionsIntoATablespace: the outbox is made where the role makes its tables, which is the usual place
// also if the role names that.
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
