package integration_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestRollByMembers: a member of the owner may roll only if it inherits, and since PostgreSQL 16, if it may give the
// owner tables too. One that may not gets the statements that mend it. One that becomes the owner by a setting is no
// finding.
func TestRollByMembers(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10, 20, 30)
	h.writeRows(t, 15, settledLongAgo)
	owner := "Own-er_" + h.dbName(t)
	members := map[string]string{ // what is granted to each
		"heir":   `GRANT %o TO %m`,
		"no-one": `ALTER ROLE %m NOINHERIT`,
		"cut":    `GRANT %o TO %m; ALTER ROLE %m NOINHERIT`,
		"other":  `GRANT %o TO %m; ALTER ROLE %m NOINHERIT; ALTER ROLE %m SET role = %o`,
	}
	if h.count(t, `SELECT current_setting('server_version_num')::int`) >= 160000 {
		members["cut"] = `GRANT %o TO %m WITH INHERIT FALSE`
		members["user"] = `GRANT %o TO %m WITH SET FALSE`
		members["other"] = `GRANT %o TO %m WITH INHERIT FALSE; ALTER ROLE %m SET role = %o`
	}
	as := map[string]handle{}
	fill := func(s, member string) string {
		s = regexp.MustCompile(`%o`).ReplaceAllString(s, `"`+owner+`"`)
		return regexp.MustCompile(`%m`).ReplaceAllString(s, `"`+member+`"`)
	}
	t.Cleanup(func() {
		for _, s := range []string{`REASSIGN OWNED BY %o TO CURRENT_USER`, `DROP OWNED BY %o`, `DROP ROLE %o`} {
			_, err := h.pool.Exec(context.Background(), fill(s, ""))
			require.NoError(t, err)
		}
	})
	execScript(t, h, fill(`CREATE ROLE %o; GRANT ALL ON SCHEMA public TO %o`, ""))
	for _, table := range column[string](t, h, `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
		AND relkind IN ('r', 'p')`) {
		h.exec(t, fill(`ALTER TABLE "`+table+`" OWNER TO %o`, ""))
	}
	for kind, grant := range members {
		member := kind + "_" + h.dbName(t)
		execScript(t, h, fill(`CREATE ROLE %m LOGIN PASSWORD 'p'; GRANT SELECT, INSERT, UPDATE ON outbox_audit TO %m;
			GRANT SELECT ON outbox TO %m; GRANT SELECT ON SEQUENCE outbox_id_seq TO %m; `+grant, member))
		t.Cleanup(func() {
			_, err := h.pool.Exec(context.Background(), fill(`DROP OWNED BY %m`, member))
			require.NoError(t, err)
			_, err = h.pool.Exec(context.Background(), fill(`DROP ROLE %m`, member))
			require.NoError(t, err)
		})
		as[kind] = pgxHandle(t, kind, h.url, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.User, cfg.ConnConfig.Password = member, "p"
		})
	}
	last := int64(15)
	rolls := func(kind string) {
		t.Helper()
		last += 10
		h.exec(t, `SELECT setval('outbox_id_seq', $1::bigint)`, last)
		r, err := as[kind].tryRoll(t)
		require.NoError(t, err, kind)
		require.NotZero(t, r.Made, kind)
		require.NotContains(t, findings(t, h), "roll_owner", kind)
		require.Equal(t, []string{`"` + owner + `"`}, column[string](t, h, `SELECT DISTINCT relowner::regrole::text
			FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = 'outbox'::regclass`), kind)
	}
	rolls("heir")
	rolls("other")
	for _, kind := range []string{"no-one", "cut", "user"} {
		if as[kind].db == nil {
			continue
		}
		_, err := as[kind].tryRoll(t)
		require.ErrorContains(t, err, "does not own table", kind)
		cure := regexp.MustCompile(`or ((?:GRANT|ALTER) .*)`).FindStringSubmatch(err.Error())
		require.Len(t, cure, 2, err)
		f, ok := findings(t, h)["roll_owner"]
		require.True(t, ok, kind)
		require.Contains(t, f.Cure, cure[1])
		execScript(t, h, cure[1])
		rolls(kind)
	}
}

// TestRollOfNamesThatNeedQuotes: the schema comes from the search path, and a leaf was attached by hand.
func TestRollOfNamesThatNeedQuotes(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	h.exec(t, `CREATE SCHEMA "it's ""my"" {leaf}"`)
	setForDatabase(t, h, `search_path = "it''s ""my"" {leaf}"`)
	h.pool.Reset()
	require.NoError(t, makeTables(t.Context(), h.db))
	intoLeaves(t, h, 10, 20, 30)
	h.exec(t, `CREATE TABLE "a leaf's $1" (LIKE outbox INCLUDING ALL)`)
	h.exec(t, `ALTER TABLE outbox ATTACH PARTITION "a leaf's $1" FOR VALUES FROM (30) TO (40)`)
	h.writeRows(t, 60, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id IN (35, 55)`)
	require.Subset(t, did(h.roll(t)),
		[]string{"emptied outbox_p0", "emptied a leaf's $1", "deleted outbox_default", "dropped outbox_p0"})
	require.Equal(t, []int64{35, 55}, h.ids(t, "outbox"))
}

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
