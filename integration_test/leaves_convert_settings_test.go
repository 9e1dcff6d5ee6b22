package integration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/schema"
)

// setForDatabase gives the database settings, for sessions that begin afterwards.
func setForDatabase(t *testing.T, h handle, settings ...string) {
	t.Helper()
	for _, s := range settings {
		h.exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+s+`', current_database()); END $$`)
	}
}

// TestPartitionsIgnoreSettingsOfTheRole: Partition, Unpartition and rolls have settings of their own where those of the
// role would shape partitions, or have all others wait for long.
func TestPartitionsIgnoreSettingsOfTheRole(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	execScript(t, h, `CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
		CREATE TABLE told (what text, setting text);
		CREATE FUNCTION tells(what text) RETURNS void LANGUAGE sql AS $$ INSERT INTO told SELECT what, name || '=' || setting
			FROM pg_settings WHERE name IN ('synchronous_commit', 'statement_timeout', 'lock_timeout', 'jit') $$;
		CREATE FUNCTION ddl() RETURNS event_trigger LANGUAGE plpgsql AS
			$$ BEGIN PERFORM tells(tg_tag); END $$;
		CREATE FUNCTION truncates() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN PERFORM tells('TRUNCATE'); RETURN NULL; END $$;
		CREATE EVENT TRIGGER told ON ddl_command_start WHEN TAG IN ('CREATE TABLE', 'DROP TABLE') EXECUTE FUNCTION ddl()`)
	setForDatabase(t, h, `default_table_access_method = other`, `statement_timeout = 7000`,
		`synchronous_commit = remote_apply`, `jit = on`)
	h.writeRows(t, 10, settledLongAgo)
	as := watchedHandle(t, h, func(string, bool) bool { return true })
	told := func() []string {
		return column[string](t, h, `WITH gone AS (DELETE FROM told RETURNING *)
			SELECT what || ' ' || string_agg(DISTINCT setting, ' ' ORDER BY setting) FROM gone GROUP BY what ORDER BY 1`)
	}
	require.NoError(t, schema.Partition(t.Context(), as.db, schema.PartitionConfig{PartitionSize: 1000}))
	require.Equal(t,
		[]string{"CREATE TABLE jit=off lock_timeout=5 statement_timeout=10000 synchronous_commit=local"}, told())
	execScript(t, h, `CREATE TRIGGER told BEFORE TRUNCATE ON outbox_p0 EXECUTE FUNCTION truncates();
		SELECT setval('outbox_id_seq', 2500)`)
	require.Subset(t, did(as.roll(t)), []string{"made outbox_p5", "emptied outbox_p0"})
	const roll = " jit=off lock_timeout=50 statement_timeout=10000 synchronous_commit=local"
	require.Equal(t, []string{"CREATE TABLE" + roll, "TRUNCATE" + roll}, told())
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_class JOIN pg_am a ON a.oid = relam WHERE amname = 'other'
		AND relname ~ '^outbox'`))
	require.NoError(t, schema.Unpartition(t.Context(), as.db))
	require.Equal(t, []string{"DROP TABLE jit=off lock_timeout=5 statement_timeout=1000 synchronous_commit=local"}, told())
}

// soonCancelled has the database cancel what takes long, and says how long something takes that would be cancelled.
func soonCancelled(t *testing.T, h handle) time.Duration {
	t.Helper()
	setForDatabase(t, h, `statement_timeout = 1000`, `lock_timeout = 1000`)
	if h.count(t, `SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'`) == 0 {
		return 2 * time.Second
	}
	setForDatabase(t, h, `transaction_timeout = 10000`) // on a busy machine others take seconds
	return 12 * time.Second
}

// TestConvertIgnoresTimeouts has a role whose statements end soon, and the table in use for longer.
func TestConvertIgnoresTimeouts(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	use := soonCancelled(t, h)
	var end func()
	short := watchedHandle(t, h, func(s string, sent bool) bool {
		if !sent && end == nil && strings.Contains(s, "VALIDATE CONSTRAINT") {
			end = h.open(t, `LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE`)
			time.AfterFunc(use, end)
		}
		return true
	})
	require.NoError(t, schema.Partition(t.Context(), short.db, schema.PartitionConfig{PartitionSize: 1000}))
	require.NotNil(t, end)
}

// TestUnpartitionLooksBeforeItLocks: it reads all partitions until it knows which one has rows, past what is dead in
// them; all others wait for what it does later.
func TestUnpartitionLooksBeforeItLocks(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100, 200)
	h.writeRows(t, 10, "")
	var sent []string
	as := watchedHandle(t, h, func(s string, done bool) bool {
		if done {
			sent = append(sent, s)
		}
		return true
	})
	require.NoError(t, schema.Unpartition(t.Context(), as.db))
	first := func(start string) int {
		return slices.IndexFunc(sent, func(s string) bool { return strings.HasPrefix(s, start) })
	}
	require.NotEqual(t, -1, first("SELECT o.id FROM ONLY"))
	require.Less(t, first("SELECT o.id FROM ONLY"), first("LOCK TABLE"))
}

// TestConvertNamesWhatToDo about privileges and a partition that cannot take the place of the outbox.
func TestConvertNamesWhatToDo(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	execScript(t, h, `CREATE SCHEMA far; ALTER TABLE outbox_p0 SET SCHEMA far`)
	require.ErrorContains(t, schema.Unpartition(t.Context(), h.db),
		"ALTER TABLE far.outbox_p0 SET SCHEMA public")
	execScript(t, h, `ALTER TABLE far.outbox_p0 SET SCHEMA public;
		CREATE FUNCTION refuses() RETURNS event_trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'insufficient_privilege'; END $$;
		CREATE EVENT TRIGGER refuses ON ddl_command_start WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION refuses()`)
	require.ErrorContains(t, schema.Unpartition(t.Context(), h.db),
		"(unpartition as the role that owns the tables")
}
