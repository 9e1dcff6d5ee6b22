package integration_test

import (
	"context"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
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
