package integration_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/services"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const pendingIn = `SELECT count(*) FROM outbox WHERE published_at IS NULL`

// tenPending has a leaf of 100 old messages, ten of them pending, which must be put back.
func tenPending(t testing.TB) handle {
	t.Helper()
	h := newLeaves(t, 100, 200, 300, 400, 500)
	h.writeRows(t, 105, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id <= 10`)
	return h
}

// pgDump returns the program, if there is one for this server.
func pgDump(t testing.TB, h handle) string {
	t.Helper()
	major := h.count(t, `SELECT current_setting('server_version_num')::int / 10000`)
	for ; major < 30; major++ {
		for _, pattern := range []string{"/usr/lib/postgresql/%d/bin/pg_dump", "/usr/pgsql-%d/bin/pg_dump"} {
			if path := fmt.Sprintf(pattern, major); fileExists(path) {
				return path
			}
		}
	}
	if bin := os.Getenv("OUTBOX_POSTGRES_BIN"); bin != "" && fileExists(filepath.Join(bin, "pg_dump")) {
		return filepath.Join(bin, "pg_dump")
	}
	return ""
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// dumpLikePgDump does what pg_dump does, for servers that came without it: a snapshot first, then the locks.
func dumpLikePgDump(ctx context.Context, h handle) (string, error) {
	conn, err := pgx.Connect(ctx, h.url+"&application_name=pg_dump")
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var dump strings.Builder
	for _, s := range []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM pg_class",
		"LOCK TABLE outbox IN ACCESS SHARE MODE"} {
		if _, err := conn.Exec(ctx, s); err != nil {
			return "", err
		}
	}
	_, err = conn.PgConn().CopyTo(ctx, &dump, "COPY (SELECT uuid FROM outbox WHERE published_at IS NULL) TO STDOUT")
	return dump.String(), err
}

// TestPutBackIsInEveryDump has a dump begin while the leaf is empty: it waits for the lock with a snapshot from before.
func TestPutBackIsInEveryDump(t *testing.T) {
	t.Parallel()
	h := tenPending(t)
	program := pgDump(t, h)
	if program == "" {
		t.Log("no pg_dump for this server: its statements stand in for it")
	}
	waiting := func() bool {
		return h.count(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pg_dump'
			AND wait_event_type = 'Lock' AND datname = current_database()`) > 0
	}
	type dumped struct {
		text string
		err  error
	}
	for try := 1; ; try++ { // on a busy machine the server may end the transaction before the dump has begun
		dumps, waited := make(chan dumped, 1), false
		roller := watchedHandle(t, h, func(statement string, sent bool) bool {
			if sent || !strings.HasPrefix(statement, "COMMIT") || waited ||
				h.count(t, `SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted
					AND relation = 'outbox_p0'::regclass`) == 0 {
				return true
			}
			go func() {
				if program == "" {
					text, err := dumpLikePgDump(t.Context(), h)
					dumps <- dumped{text, err}
					return
				}
				out, err := exec.CommandContext(t.Context(), program, "--data-only", "--inserts", "-t", "outbox*",
					h.url).CombinedOutput()
				dumps <- dumped{string(out), err}
			}()
			for deadline := time.Now().Add(4 * time.Second); !waited && time.Now().Before(deadline); {
				waited = waiting()
			}
			return true
		})
		r, err := roller.tryRoll(t)
		if !waited {
			require.Less(t, try, 10, "the dump never waited for the leaf: %v %v", did(r), err)
			continue
		}
		d := within(t, "the dump", dumps)
		require.NoError(t, d.err, d.text)
		if err != nil {
			t.Log(err)
			continue
		}
		require.Contains(t, did(r), "emptied outbox_p0")
		for n := 1; n <= 10; n++ {
			require.Regexp(t, fmt.Sprintf(`\bu%d\b`, n), d.text, "a dump must hold every pending message")
		}
		return
	}
}

// TestPutBackUnderOldSnapshot reads in a transaction whose snapshot is older than the roll.
func TestPutBackUnderOldSnapshot(t *testing.T) {
	extended(t)
	t.Parallel()
	h := tenPending(t)
	tx, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT count(*) FROM pg_class`) // it has a snapshot, and no lock on the leaf
	require.NoError(t, err)
	r := h.roll(t)
	require.Contains(t, did(r), "emptied outbox_p0")
	var n int
	require.NoError(t, tx.QueryRow(t.Context(), pendingIn).Scan(&n))
	require.Equal(t, 10, n, "a snapshot from before must see what was put back")
}

// TestPutBackKeepsColumns compares all of a row with what it was, by every driver that can put it back.
func TestPutBackKeepsColumns(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, open := range []func(testing.TB, string) handle{
		newPgxHandle, newPgBouncerHandle,
		func(t testing.TB, url string) handle { return newSQLHandle(t, "pgx", url) },
		func(t testing.TB, url string) handle { return newSQLHandle(t, "postgres", url) },
	} {
		url := newMigratedDatabase(t)
		h := open(t, url)
		t.Run(h.name, func(t *testing.T) {
			intoLeaves(t, h, 100, 200)
			h.writeRows(t, 101, settledLongAgo)
			h.exec(t, `ALTER TABLE outbox ADD COLUMN "of the user's" numeric DEFAULT 1.50, ADD COLUMN gone int`)
			h.exec(t, `ALTER TABLE outbox DROP COLUMN gone`)
			h.exec(t, `UPDATE outbox SET published_at = NULL, "of the user's" = 'NaN' WHERE id <= 4`)
			h.exec(t, `UPDATE outbox SET payload = (SELECT string_agg(sha512(n::text::bytea), '') FROM generate_series(1, 9999) n),
				metadata = '{"ü": "\"\\\n", "n": "1.0"}', history = '[{"at": "2026-01-01", "what": "x"}, null]' WHERE id = 1`)
			h.exec(t, `UPDATE outbox SET due_at = 'infinity', attempts = 7, last_error = E'a\nb\\' WHERE id = 2`)
			h.exec(t, `UPDATE outbox SET dead_at = '-infinity', created_at = '0044-03-15 BC', topic = '', key = '' WHERE id = 3`)
			h.exec(t, `UPDATE outbox SET dead_at = '2026-02-03 04:05:06.789012+07', payload = '' WHERE id = 4`)
			all := `SELECT md5(payload) || lane || (to_jsonb(o) - 'payload')::text FROM outbox o WHERE id <= 4 ORDER BY id`
			before, file := column[string](t, h, all), `SELECT pg_relation_filenode('outbox_p0')::bigint`
			was := value[int64](t, h, file)
			r, err := h.tryRoll(t)
			if h.name == "sql-pq" {
				require.ErrorContains(t, err, "use a pgx pool")
				require.Equal(t, was, value[int64](t, h, file))
				require.Equal(t, 101, h.count(t, `SELECT count(*) FROM outbox`))
				return
			}
			require.NoError(t, err)
			require.Contains(t, did(r), "emptied outbox_p0")
			require.NotEqual(t, was, value[int64](t, h, file))
			require.Equal(t, before, column[string](t, h, all))
			require.Equal(t, 4+2, h.count(t, `SELECT count(*) FROM outbox`))
			h.exec(t, `UPDATE outbox SET attempts = 8 WHERE id = 2`)
			require.Equal(t, 1, h.count(t, `SELECT count(*) FROM outbox WHERE attempts = 8`), "its indexes know it")
		})
	}
}

// TestPutBackRefusesMany deletes old rows one by one where too much must stay.
func TestPutBackRefusesMany(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, c := range []struct {
		name, prepare string
		does          admin.LeafAction
		why           string
		left          int
	}{
		{"as many as may", `UPDATE outbox SET published_at = NULL WHERE id <= 1000`, "emptied", "", 1000},
		{"one more", `UPDATE outbox SET published_at = NULL WHERE id <= 1001`, "deleted", "more than 1000", 1001},
		{"one more, that will be settled long enough", `UPDATE outbox SET published_at = CASE id WHEN 1001 THEN now() END
			WHERE id <= 1001`, "kept", "younger than the retention", 2000},
		{"young at its end", `UPDATE outbox SET published_at = now() WHERE id > 500`, "kept", "younger", 2000},
		{"young and few", `UPDATE outbox SET published_at = now() WHERE id > 1500`, "emptied", "", 499},
		{"large", `UPDATE outbox SET published_at = NULL, payload = repeat('x', 9 << 20)::bytea WHERE id <= 2`, "deleted",
			"the messages that stay have 18 MiB", 2},
		{"triggers", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''called''; END';
			UPDATE outbox SET published_at = NULL WHERE id = 7;
			CREATE TRIGGER f BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION f()`, "deleted", "triggers", 1},
		{"triggers, and nothing stays", `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''called''; END';
			CREATE TRIGGER f BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION f()`, "emptied", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newLeaves(t, 2000, 4000, 6000)
			h.writeRows(t, 1999, settledLongAgo)
			h.exec(t, `SELECT setval('outbox_id_seq', 2000)`)
			execScript(t, h, c.prepare)
			file := h.count(t, `SELECT pg_relation_filenode('outbox_p0')::bigint`)
			tried := h.roll(t, func(c *admin.RollConfig) { c.DryRun = true })
			r := h.roll(t)
			for _, leaf := range []admin.RolledLeaf{tried.Leaves[len(tried.Leaves)-1], r.Leaves[len(r.Leaves)-1]} {
				require.Equal(t, "outbox_p0", leaf.Name)
				require.Equal(t, c.does, leaf.Action)
				require.Contains(t, leaf.Why, c.why)
			}
			if c.does == admin.LeafKept {
				c.left = 1999
			}
			require.Equal(t, c.left, h.count(t, `SELECT count(*) FROM outbox`))
			require.Equal(t, c.does == admin.LeafEmptied, file != h.count(t, `SELECT pg_relation_filenode('outbox_p0')::bigint`))
		})
	}
}

// TestRollWritesLittle compares the WAL of a leaf that is emptied with that of rows that are deleted.
func TestRollWritesLittle(t *testing.T) {
	extended(t)
	t.Parallel()
	server, err := services.StartPostgres(t.Context(), services.Options{PostgresSettings: []string{"autovacuum=off", "fsync=off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	h := newPgxHandle(t, server.URL())
	require.NoError(t, makeTables(t.Context(), h.db))
	const rows = 20_000
	intoLeaves(t, h, rows, 2*rows, 3*rows, 4*rows, 5*rows, 6*rows, 7*rows)
	h.writeRows(t, 2*rows-1, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id <= 10`)
	h.exec(t, `VACUUM outbox`) // as autovacuum did long ago: where pages have checksums, marks of a first reader write WAL
	wal := func(what string, do func()) float64 {
		h.exec(t, `CHECKPOINT`) // then the next change of each page writes all of it, as most do in production
		begin := value[string](t, h, `SELECT pg_current_wal_insert_lsn()::text`)
		do()
		n := value[float64](t, h, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8`, begin)
		t.Logf("%s: %.0f bytes of WAL, %.2f a message", what, n, n/rows)
		return n / rows
	}
	h.roll(t, func(c *admin.RollConfig) { c.Retention = 0 }) // makes leaves
	emptied := wal("emptied", func() { require.Contains(t, did(h.roll(t)), "emptied outbox_p0") })
	deleted := wal("deleted", func() {
		a, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
		require.NoError(t, err)
		r, err := a.Clean(t.Context(), admin.CleanConfig{OutboxRetention: 24 * time.Hour})
		require.NoError(t, err)
		require.Equal(t, int64(rows), r.Outbox.N)
	})
	require.Less(t, emptied, 6.0) // the catalog's pages, whole: no more for a leaf a hundred times as large
	require.Less(t, 20*emptied, deleted)
}

// TestLeavesAreRead reads partitions from the catalog, also of an outbox with another name in a schema of its own.
func TestLeavesAreRead(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	read := func(names sqltext.Tables) leaves.Set {
		t.Helper()
		s, err := leaves.Read(t.Context(), (*core.DB)(h.db), names)
		require.NoError(t, err)
		return s
	}
	s := read(sqltext.Tables{})
	require.Equal(t, leaves.Set{Schema: "public", Owner: s.Role, Role: s.Role, Known: true}, s,
		"a plain table has no leaves")
	require.Zero(t, read(sqltext.Tables{Outbox: "missing"}))

	intoLeaves(t, h, 10, 20, 40)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload) SELECT n, 't', 'p' FROM generate_series(1, 12) n`)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (1000, 'far', 't', 'p')`)
	h.exec(t, `ANALYZE outbox_p1`)
	s = read(sqltext.Tables{})
	require.True(t, s.Partitioned)
	require.Equal(t, int64(12), s.Last)
	require.Len(t, s.Leaves, 3)
	require.Equal(t, leaves.Range{From: math.MinInt64, To: 10}, s.Leaves[0].Range)
	require.Equal(t, leaves.Range{From: 20, To: 40}, s.Leaves[2].Range)
	require.Equal(t, "outbox_p2", s.Leaves[2].Name)
	require.Equal(t, `public.outbox_p2`, s.Leaves[2].SQL)
	require.Equal(t, []string{"autovacuum_vacuum_threshold=20000", "autovacuum_vacuum_scale_factor=0"},
		s.Leaves[2].Options)
	require.Equal(t, []int64{-1, 3, -1}, []int64{s.Leaves[0].Rows, s.Leaves[1].Rows, s.Leaves[2].Rows})
	require.Positive(t, s.Leaves[1].Bytes)
	require.Zero(t, s.Leaves[2].Bytes)
	require.Greater(t, s.Leaves[1].Total, s.Leaves[1].Bytes)
	require.Equal(t, "outbox_default", s.Default.Name)
	require.Positive(t, s.Default.Bytes)
	require.Equal(t, 1, s.Current())
	require.Equal(t, 1, s.Ahead())
	require.Equal(t, int64(20), s.Size())

	h.exec(t, `CREATE SCHEMA "Far-away"`)
	h.exec(t, `CREATE TABLE "Far-away".box (id bigint PRIMARY KEY) PARTITION BY RANGE (id)`)
	h.exec(t, `CREATE SEQUENCE "Far-away".box_id_seq`)
	h.exec(t, `CREATE TABLE "Far-away"."box_Z" PARTITION OF "Far-away".box FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`)
	s = read(sqltext.Tables{Schema: "Far-away", Outbox: "box"})
	require.Equal(t, []string{`"Far-away"."box_Z"`}, []string{s.Leaves[0].SQL})
	require.Zero(t, s.Last)
	require.Nil(t, s.Default)
}
