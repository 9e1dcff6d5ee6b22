package integration_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestUnloggedPartition: a server crash empties unlogged tables. Check finds each such table that loses messages, so
// do Doctor and outboxctl, and after the printed cures a crash loses nothing.
func TestUnloggedPartition(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	intoPartitions(t, h, 10, 20, 30, 40, 50)
	h.exec(t, `ALTER TABLE outbox_default SET (autovacuum_vacuum_scale_factor = 0)`)
	execScript(t, h, `CREATE TABLE outbox_split PARTITION OF outbox FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
		CREATE TABLE "half-way" PARTITION OF outbox_split FOR VALUES FROM (100) TO (150);
		CREATE TABLE rest PARTITION OF outbox_split FOR VALUES FROM (150) TO (200)`)
	clean, err := schemaProblems(t.Context(), h.db)
	require.NoError(t, err)
	require.Empty(t, clean)
	type damage struct{ sql, object, cure string }
	list := []damage{
		{`ALTER TABLE outbox_p1 SET UNLOGGED`, `table public.outbox_p1`, `ALTER TABLE public.outbox_p1 SET LOGGED`},
		{`ALTER TABLE outbox_default SET UNLOGGED`, `table public.outbox_default`, ``},
		{`CREATE UNLOGGED TABLE "Other" (LIKE outbox INCLUDING ALL) WITH (autovacuum_vacuum_scale_factor = 0);
			ALTER TABLE outbox ATTACH PARTITION "Other" FOR VALUES FROM (500) TO (600)`, `table public."Other"`, ``},
		{`ALTER TABLE "half-way" SET UNLOGGED; ALTER TABLE rest SET UNLOGGED`, `table public.outbox_split`,
			`ALTER TABLE public."half-way" SET LOGGED; ALTER TABLE public.rest SET LOGGED`},
		{`ALTER TABLE inbox SET UNLOGGED`, `table "inbox"`, ``},
		{`ALTER TABLE inbox_queue SET UNLOGGED`, `table "inbox_queue"`, ``},
	}
	if h.count(t, `SELECT current_setting('server_version_num')::int`) >= 150000 {
		list = append(list, damage{`ALTER SEQUENCE outbox_id_seq SET UNLOGGED`, `sequence "outbox_id_seq"`, ``})
	}
	var cures []string
	for i, d := range list {
		execScript(t, h, d.sql)
		found, err := schemaProblems(t.Context(), h.db)
		require.NoError(t, err)
		require.Len(t, found, 1)
		p := found[0]
		require.ErrorContains(t, checkSchema(t.Context(), h.db), p.String(), d.sql)
		require.Equal(t, d.object, p.Object)
		require.Equal(t, "is unlogged: a crash of the server would empty it", p.Found)
		if d.cure != "" {
			require.Equal(t, d.cure, p.Cure)
		}
		if i == 0 { // they print what Check finds
			require.Equal(t, admin.Critical, findings(t, h)["schema"].Severity)
			r := ctl{t: t, url: h.url}.run("check")
			require.Equal(t, 2, r.code, r.out)
			require.Contains(t, r.out, p.Object+" is unlogged")
		}
		execScript(t, h, p.Cure)
		cures = append(cures, p.Cure)
		after, err := schemaProblems(t.Context(), h.db)
		require.NoError(t, err)
		require.Empty(t, after, p.Cure)
	}

	for _, d := range list {
		if d.object != `table public."Other"` {
			execScript(t, h, d.sql)
		}
	}
	h.exec(t, `ALTER TABLE "Other" SET UNLOGGED`)
	for _, cure := range cures {
		execScript(t, h, cure)
	}
	h.writeRows(t, 60, "")
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) SELECT n, 'far', 't', '' FROM unnest('{120, 170, 520}'::int[]) n`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id) VALUES ('c', 'm')`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id) VALUES ('s', 'm')`)
	killBackend(t, h)
	assert.Equal(t, 63, h.count(t, `SELECT count(*) FROM outbox`))
	assert.Equal(t, 2, h.count(t, `SELECT (SELECT count(*) FROM inbox) + (SELECT count(*) FROM inbox_queue)`))
	assert.Greater(t, h.count(t, `SELECT nextval('outbox_id_seq')`), 60, "no id is assigned again")
	h.exec(t, `UPDATE pg_class SET relpersistence = 'u' WHERE oid = 'outbox'::regclass`) // like CREATE UNLOGGED TABLE
	require.NoError(t, checkSchema(t.Context(), h.db), "the table is empty, and no statement makes it logged")
}

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

// placed returns the tablespaces of the outbox and its partitions, or of one of them, and of their indexes.
func placed(t *testing.T, h handle, name string) []string {
	t.Helper()
	return column[string](t, h, `WITH parts AS (
		SELECT c.* FROM pg_class c WHERE c.relname ~ '^outbox(_p[0-9]+|_default)?$' AND c.relname ~ $1)
		SELECT 'table ' || coalesce(s.spcname, 'usual') FROM parts c LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
		UNION SELECT CASE WHEN x.indisprimary THEN 'key ' ELSE 'index ' END || coalesce(s.spcname, 'usual')
		  FROM parts p JOIN pg_index x ON x.indrelid = p.oid JOIN pg_class c ON c.oid = x.indexrelid
		  LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace ORDER BY 1`, name)
}

// TestPartitionsFollowTheTablespaceOfTheOutbox: the role has another default tablespace. A new partition is in the
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
		setOn(t, h, `default_tablespace = partitions_role`)
		h = newPgxHandle(t, h.url)
		h.exec(t, `SELECT setval('outbox_id_seq', 15)`)
		require.Equal(t, []string{"outbox_p9"}, h.maintain(t).Made)
		require.Equal(t, want, placed(t, h, "9$"), moved)
	}
}

// TestMigrateInPartitionsIntoATablespace: the outbox is created in the role's default tablespace, even if that is the
// database's.
func TestMigrateInPartitionsIntoATablespace(t *testing.T) {
	extended(t)
	t.Parallel()
	tablespace(t, "partitions_migrated")
	for role, want := range map[string][]string{
		"partitions_migrated": {"index partitions_migrated", "key partitions_migrated", "table partitions_migrated"},
		"pg_default":          {"index usual", "key usual", "table usual"},
	} {
		h := newPgxHandle(t, newDatabase(t))
		setOn(t, h, `default_tablespace = `+role)
		h = newPgxHandle(t, h.url)
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: 100})
		require.NoError(t, err, role)
		require.Equal(t, want, placed(t, h, ""), role)
	}
}

// TestPartitionedOrder runs the order test while partitions are created, emptied and, if the outbox is ever free,
// dropped as fast as possible: settled messages are old immediately. A run that cannot lock the outbox is cut off,
// because it would try for ten seconds.
func TestPartitionedOrder(t *testing.T) {
	extended(t)
	parallel(t)
	url := newOrderDatabase(t)
	writer := pgxHandle(t, "writer", url, manyConns)
	intoPartitions(t, writer, nine(1000)...)
	sabotage := &fetchSaboteur{every: 20}
	reader := pgxHandle(t, "reader", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sabotage })
	writer.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('u', 'later', '', now() + interval '1 hour')`)
	a, err := admin.New(newPgxHandle(t, url).db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	runs, made, dropped, removed := 0, 0, 0, int64(0)
	maintain := func(ctx context.Context) error {
		r, err := a.MaintainPartitions(ctx, admin.PartitionsConfig{Retention: time.Millisecond, PartitionSize: 1000})
		made, dropped, removed = made+len(r.Made), dropped+len(r.Dropped), removed+r.Removed
		return err
	}
	var maintaining sync.WaitGroup
	t.Cleanup(func() {
		stop()
		maintaining.Wait()
	})
	done := make(chan struct{})
	run := orderRun{writers: 16, time: orderTime(patience), until: done, started: func(handle) {
		maintaining.Go(func() {
			ended := false
			for begun := time.Now(); ctx.Err() == nil; runs++ {
				once, end := context.WithTimeout(ctx, 2*time.Second)
				if err := maintain(once); !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
					assert.NoError(t, err)
				}
				end()
				if !ended && removed > 0 && time.Since(begun) > orderTime(6*time.Second) {
					ended = true
					close(done)
				}
			}
		})
	}}
	checkOrder(t, run, writer, reader, newLedger(true))
	stop()
	maintaining.Wait()
	t.Logf("%d runs: %d partitions made, %d dropped, %d messages removed; %s", runs, made, dropped, removed, sabotage)
	assert.Positive(t, made)
	assert.Positive(t, removed)
	require.NoError(t, maintain(t.Context()))
	assert.Positive(t, dropped)
	assert.Equal(t, 1, writer.count(t, `SELECT count(*) FROM outbox_p0 WHERE uuid = 'u'`), "due in an hour")
}

// TestPartitionsAreRead reads partitions from the catalog, including those of an outbox with another name and schema.
func TestPartitionsAreRead(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	h := onPgx(t)
	read := func(names sqltext.Tables) partitions.Set {
		t.Helper()
		s, err := partitions.Read(t.Context(), (*core.DB)(h.db), names)
		require.NoError(t, err)
		return s
	}
	s := read(sqltext.Tables{})
	require.Equal(t, partitions.Set{Schema: "public", Owner: s.Role, Role: s.Role, Owns: true, Known: true}, s,
		"a plain table has no partitions")
	require.Zero(t, read(sqltext.Tables{Outbox: "missing"}))

	intoPartitions(t, h, 10, 20, 40)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload) SELECT n, 't', 'p' FROM generate_series(1, 12) n`)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (1000, 'far', 't', 'p')`)
	s = read(sqltext.Tables{})
	require.True(t, s.Partitioned)
	require.Equal(t, int64(12), s.Last)
	require.Len(t, s.Partitions, 3)
	require.Equal(t, partitions.Range{From: math.MinInt64, To: 10}, s.Partitions[0].Range)
	require.Equal(t, partitions.Range{From: 20, To: 40}, s.Partitions[2].Range)
	require.Equal(t, "outbox_p2", s.Partitions[2].Name)
	require.Equal(t, `public.outbox_p2`, s.Partitions[2].SQL)
	require.Equal(t, []string{"autovacuum_vacuum_threshold=20000", "autovacuum_vacuum_scale_factor=0"},
		s.Partitions[2].Options)
	require.Positive(t, s.Partitions[1].Bytes)
	require.Zero(t, s.Partitions[2].Bytes)
	require.Greater(t, s.Partitions[1].Total, s.Partitions[1].Bytes)
	require.Equal(t, "outbox_default", s.Default.Name)
	require.Positive(t, s.Default.Bytes)
	require.Len(t, s.Behind(), 1)
	require.Equal(t, 1, s.Ahead())
	require.Equal(t, int64(20), s.Size())

	h.exec(t, `CREATE SCHEMA "Far-away"`)
	h.exec(t, `CREATE TABLE "Far-away".box (id bigint PRIMARY KEY) PARTITION BY RANGE (id)`)
	h.exec(t, `CREATE SEQUENCE "Far-away".box_id_seq`)
	h.exec(t, `CREATE TABLE "Far-away"."box_Z" PARTITION OF "Far-away".box FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`)
	s = read(sqltext.Tables{Schema: "Far-away", Outbox: "box"})
	require.Equal(t, []string{`"Far-away"."box_Z"`}, []string{s.Partitions[0].SQL})
	require.Zero(t, s.Last)
	require.Nil(t, s.Default)
}
