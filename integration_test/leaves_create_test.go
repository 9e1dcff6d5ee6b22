package integration_test

import (
	"context"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/schema"
)

// ownedBy makes a role that owns the tables and may log in, but may make none beside them, and returns a handle of it.
func ownedBy(t *testing.T, h handle) handle {
	t.Helper()
	owner := "maker_" + h.dbName(t)
	h.exec(t, `CREATE ROLE `+owner+` LOGIN PASSWORD 'p'`)
	t.Cleanup(func() {
		for _, s := range []string{
			`REASSIGN OWNED BY ` + owner + ` TO CURRENT_USER`, `DROP OWNED BY ` + owner, `DROP ROLE ` + owner,
		} {
			_, err := h.pool.Exec(context.Background(), s)
			require.NoError(t, err)
		}
	})
	h.exec(t, `GRANT ALL ON SCHEMA public TO `+owner)
	for _, table := range column[string](t, h, `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
		AND relkind IN ('r', 'p')`) {
		h.exec(t, `ALTER TABLE "`+table+`" OWNER TO `+owner)
	}
	h.exec(t, `REVOKE CREATE ON SCHEMA public FROM PUBLIC, `+owner)
	return pgxHandle(t, "owner", h.url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.User, cfg.ConnConfig.Password = owner, "p"
	})
}

var grantOf = regexp.MustCompile(`GRANT CREATE .*`)

// TestRollByAnOwnerThatMayMakeNoTable: a roll says so at once, not when the first leaf is needed, with the statements
// that mend it.
func TestRollByAnOwnerThatMayMakeNoTable(t *testing.T) {
	extended(t)
	t.Parallel()
	tablespace(t, "leaves_denied")
	h := newLeaves(t, 10, 20, 30, 40, 50, 60, 70)
	h.writeRows(t, 15, settledLongAgo)
	h.exec(t, `ALTER TABLE outbox SET TABLESPACE leaves_denied`)
	owner := ownedBy(t, h)
	_, err := owner.tryRoll(t)
	require.ErrorContains(t, err, "lacks CREATE on its schema or tablespace: GRANT CREATE ON SCHEMA public TO ")
	require.Equal(t, 15, h.count(t, `SELECT count(*) FROM outbox`))
	assert.Contains(t, value[string](t, h, `SELECT outcome FROM outbox_audit WHERE action = 'roll'`), "lacks CREATE")
	execScript(t, h, grantOf.FindString(err.Error()))
	require.Contains(t, did(owner.roll(t)), "emptied outbox_p0")
	h.exec(t, `SELECT setval('outbox_id_seq', 35)`)
	require.Contains(t, did(owner.roll(t)), "made outbox_p7")
}

// TestPartitionByAnOwnerThatMayMakeNoTable: it is said before the table is read and a check is added.
func TestPartitionByAnOwnerThatMayMakeNoTable(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	owner := ownedBy(t, h)
	_, end := holdWhile(t, h, `LOCK TABLE outbox IN ACCESS SHARE MODE`) // it would be waited for
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := schema.Partition(ctx, owner.db, schema.PartitionConfig{PartitionSize: 100})
	require.ErrorContains(t, err, "lacks CREATE on its schema or tablespace: GRANT CREATE ON SCHEMA public TO ")
	end()
	execScript(t, h, grantOf.FindString(err.Error()))
	require.NoError(t, schema.Partition(t.Context(), owner.db, schema.PartitionConfig{PartitionSize: 100}))
}

// TestLeafNamesThatAreTaken: of whatever kind that is, the next number is used.
func TestLeafNamesThatAreTaken(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10, 20)
	execScript(t, h, `CREATE VIEW outbox_p2 AS SELECT 1; CREATE DOMAIN outbox_p3 AS int; CREATE TYPE outbox_p4 AS ENUM ();
		CREATE SEQUENCE outbox_p5; CREATE TYPE outbox_p6 AS (n int)`)
	h.exec(t, `SELECT setval('outbox_id_seq', 5)`)
	require.Equal(t, []string{"made outbox_p7", "made outbox_p8", "made outbox_p9"}, did(h.roll(t)))
}
