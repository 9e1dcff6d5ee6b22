package integration_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
)

// newPartitioned returns a database whose outbox has partitions that end below these ids.
func newPartitioned(t testing.TB, ends ...int64) handle {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	intoPartitions(t, h, ends...)
	return h
}

// nine returns the ends of partitions of this size: one in use and eight ahead.
func nine(size int64) (ends []int64) {
	for i := range int64(9) {
		ends = append(ends, size*(i+1))
	}
	return ends
}

// writeRows writes n messages, and applies the assignments in set to all rows.
func (h handle) writeRows(t testing.TB, n int, set string) {
	t.Helper()
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata)
		SELECT 'u' || n, 't', 'k' || n % 7, convert_to('payload ' || n, 'UTF8'), '{"a": "b"}' FROM generate_series(1, `+
		fmt.Sprint(n)+`) n`)
	if set != "" {
		h.exec(t, `UPDATE outbox SET `+set)
	}
}

const (
	settledLongAgo = `published_at = now() - interval '2 days', created_at = now() - interval '2 days'`
	pendingIn      = `SELECT count(*) FROM outbox WHERE published_at IS NULL`
)

// maintain maintains the partitions with a retention of a day.
func (h handle) maintain(t testing.TB, change ...func(*admin.PartitionsConfig)) admin.PartitionsResult {
	t.Helper()
	r, err := h.tryMaintain(t, change...)
	require.NoError(t, err)
	return r
}

func (h handle) tryMaintain(t testing.TB, change ...func(*admin.PartitionsConfig)) (admin.PartitionsResult, error) {
	t.Helper()
	a, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	cfg := admin.PartitionsConfig{Retention: 24 * time.Hour}
	for _, c := range change {
		c(&cfg)
	}
	return a.MaintainPartitions(t.Context(), cfg)
}

// did lists the changes made to partitions.
func did(r admin.PartitionsResult) (list []string) {
	for _, name := range r.Made {
		list = append(list, "made "+name)
	}
	for _, name := range r.Dropped {
		list = append(list, "dropped "+name)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Kept)) {
		list = append(list, "kept "+name+": "+r.Kept[name])
	}
	return list
}

// ids lists the ids in a table.
func (h handle) ids(t testing.TB, table string) []int64 {
	t.Helper()
	list := column[int64](t, h, `SELECT id FROM `+table+` ORDER BY id`)
	slices.Sort(list)
	return list
}

// bounds lists the bounds of the partitions.
func (h handle) bounds(t testing.TB) (list []string) {
	t.Helper()
	for _, b := range column[string](t, h, `SELECT pg_get_expr(relpartbound, c.oid) FROM pg_inherits i
		JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'outbox'::regclass ORDER BY length(relname), relname`) {
		b = strings.NewReplacer("FOR VALUES FROM ", "", "'", "", "(", "", ")", "", " TO ", "-").Replace(b)
		if b != "DEFAULT" {
			list = append(list, b)
		}
	}
	return list
}

func (h handle) dbName(t testing.TB) string {
	t.Helper()
	return strings.ToLower(strings.NewReplacer("-", "_").Replace(value[string](t, h, `SELECT current_database()::text`)))
}

// TestMaintainPartitions creates partitions ahead, drops those whose rows are all settled and old, and reports why the
// others stay.
func TestMaintainPartitions(t *testing.T) {
	t.Parallel()
	h := newPartitioned(t, 10, 20, 30, 40, 50, 60)
	h.writeRows(t, 52, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id IN (5, 6)`)        // dead
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id IN (5, 12)`)                        // and ready
	h.exec(t, `UPDATE outbox SET published_at = NULL, due_at = now() WHERE id = 13`)              // delayed
	h.exec(t, `UPDATE outbox SET published_at = now() WHERE id = 25`)                             // young
	h.exec(t, `UPDATE outbox SET dead_at = now() - interval '3 days' WHERE id BETWEEN 30 AND 35`) // discarded
	tried := h.maintain(t, func(c *admin.PartitionsConfig) { c.DryRun = true })
	want := []string{"made outbox_p6", "made outbox_p7", "made outbox_p8", "made outbox_p9", "made outbox_p10",
		"made outbox_p11", "made outbox_p12", "made outbox_p13", "dropped outbox_p3", "dropped outbox_p4",
		"kept outbox_p0: 2 dead", "kept outbox_p1: 2 pending", "kept outbox_p2: messages are younger than the retention"}
	require.Equal(t, want, did(tried))
	require.Equal(t, int64(20), tried.Removed)
	require.Equal(t, 52, h.count(t, `SELECT count(*) FROM outbox`), "a dry run does nothing")
	require.Zero(t, h.count(t, `SELECT count(*) FROM outbox_audit`))

	r := h.maintain(t, func(c *admin.PartitionsConfig) { c.At, c.Reason = tried.At, "cron" })
	require.Equal(t, want, did(r))
	require.Equal(t, 8, r.Ahead)
	require.Equal(t, int64(20), r.Removed)
	require.Equal(t, 32, h.count(t, `SELECT count(*) FROM outbox`))
	require.Equal(t, r.Removed, value[int64](t, h, `SELECT touched FROM outbox_audit WHERE action = 'partitions'
		AND reason = 'cron' AND actor = 'test' AND ended_at IS NOT NULL AND outcome = ''`))
	require.Equal(t, []string{"62-72", "132-142"}, []string{h.bounds(t)[4], h.bounds(t)[11]},
		"a new partition begins one whole partition above the ids in use")
	require.Equal(t, value[string](t, h, `SELECT reloptions::text FROM pg_class WHERE relname = 'outbox_p5'`),
		value[string](t, h, `SELECT reloptions::text FROM pg_class WHERE relname = 'outbox_p13'`))
	require.Equal(t, 7, h.count(t, `SELECT count(*) FROM pg_indexes WHERE tablename = 'outbox_p13'`))
	require.Equal(t, want[10:], did(h.maintain(t)), "no work is left")

	list, err := newAdmin(t, h).Partitions(t.Context())
	require.NoError(t, err)
	var states []string
	for _, p := range list[:5] {
		states = append(states, fmt.Sprint(p.Name, " ", p.State, " ", p.HeldBy()))
	}
	require.Equal(t, []string{"outbox_p0 held 2 dead", "outbox_p1 held 2 pending", "outbox_p2 retained ",
		"outbox_p5 current ", "outbox_p6 ahead "}, states)

	h.exec(t, `UPDATE outbox SET `+settledLongAgo)
	require.Equal(t, []string{"dropped outbox_p0", "dropped outbox_p1", "dropped outbox_p2"}, did(h.maintain(t)))
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (25, 'late', 't', 'p')`)
	require.Equal(t, []int64{25}, h.ids(t, "outbox_default"), "an id whose partition was dropped can be stored")
}

// TestMaintainPartitionsWhileTheDefaultHasMessages: the default received messages because no partition was ahead. New
// partitions begin one whole partition above the ids in use, the default is read once for all of them, and no check
// constraint is left.
func TestMaintainPartitionsWhileTheDefaultHasMessages(t *testing.T) {
	t.Parallel()
	h := newPartitioned(t, 100, 200)
	h.writeRows(t, 450, settledLongAgo)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (600, 'by hand', 't', 'p')`)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 300`)
	require.Equal(t, 252, h.count(t, `SELECT count(*) FROM outbox_default`))
	var mu sync.Mutex
	var read []string // the server logs when it reads a table to validate its rows
	told := pgxHandle(t, "told", h.url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["client_min_messages"] = "debug1"
		cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(n.Message, `verifying table "outbox_default"`) ||
				strings.Contains(n.Message, `"outbox_default" would be violated`) {
				read = append(read, n.Message)
			}
		}
	})
	r := told.maintain(t)
	require.Equal(t, []string{"outbox_p0", "outbox_p1"}, r.Dropped)
	require.Len(t, r.Made, 8)
	require.Equal(t, []string{"601-701", "701-801"}, h.bounds(t)[:2])
	require.Equal(t, []string{`verifying table "outbox_default"`}, read)
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_empty_between'`))
	h.exec(t, `SELECT setval('outbox_id_seq', 580)`)
	h.exec(t, `UPDATE outbox SET id = 580 WHERE id = 600`)
	h.writeRows(t, 30, "")
	require.Equal(t, 252+20, h.count(t, `SELECT count(*) FROM outbox_default`), "the gap, and the existing rows")
	require.Equal(t, 10, h.count(t, `SELECT count(*) FROM outbox_p2`))
	require.Equal(t, []string{"made outbox_p10"}, did(h.maintain(t)))
}

// TestPartitionSizeChanges: new partitions may be larger, and names that are taken are skipped.
func TestPartitionSizeChanges(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPartitioned(t, nine(100)...)
	require.Empty(t, did(h.maintain(t)))
	h.exec(t, `SELECT setval('outbox_id_seq', 250)`)
	execScript(t, h, `CREATE VIEW outbox_p9 AS SELECT 1; CREATE DOMAIN outbox_p10 AS int`)
	r := h.maintain(t, func(c *admin.PartitionsConfig) { c.PartitionSize = 1000 })
	require.Equal(t, []string{"outbox_p11", "outbox_p12"}, r.Made)
	require.Equal(t, []string{"outbox_p0", "outbox_p1"}, r.Dropped, "without messages")
	h.exec(t, `SELECT setval('outbox_id_seq', 350)`)
	require.Equal(t, []string{"outbox_p13"}, h.maintain(t).Made)
	require.Equal(t, []string{"900-1900", "1900-2900", "2900-3900"}, h.bounds(t)[6:])
}

// TestPartitionsOfPartitionsAreNotDropped while they have messages, although they have none themselves.
func TestPartitionsOfPartitionsAreNotDropped(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPartitioned(t, nine(10)[1:]...)
	execScript(t, h, `DROP TABLE outbox_p0;
		CREATE TABLE outbox_p0 PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO (20) PARTITION BY HASH (id);
		CREATE TABLE half PARTITION OF outbox_p0 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE "other's $1 {partition}" PARTITION OF outbox_p0 FOR VALUES WITH (MODULUS 2, REMAINDER 1)`)
	h.writeRows(t, 25, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 7`)
	require.Equal(t, map[string]string{"outbox_p0": "1 pending"}, h.maintain(t).Kept)
	h.exec(t, `UPDATE outbox SET `+settledLongAgo)
	require.Equal(t, []string{"outbox_p0"}, h.maintain(t).Dropped)
}

// TestMaintainPartitionsRefuses and names the cause.
func TestMaintainPartitionsRefuses(t *testing.T) {
	needsPlainOutbox(t)
	h := onPgx(t)
	_, err := h.tryMaintain(t)
	require.ErrorContains(t, err, "the outbox is not partitioned")
	intoPartitions(t, h)
	require.Contains(t, h.maintain(t).NotMade, "set PartitionSize")
	for text, change := range map[string]func(*admin.PartitionsConfig){
		"PartitionsConfig.Retention":     func(c *admin.PartitionsConfig) { c.Retention = -1 },
		"PartitionsConfig.PartitionSize": func(c *admin.PartitionsConfig) { c.PartitionSize = -1 },
		"PartitionsConfig.At":            func(c *admin.PartitionsConfig) { c.At = time.Now().Add(time.Hour) },
	} {
		_, err := h.tryMaintain(t, change)
		require.ErrorContains(t, err, text)
		require.ErrorIs(t, err, admin.ErrInvalid)
	}
	h.maintain(t, func(c *admin.PartitionsConfig) { c.PartitionSize = 100 })
	require.Equal(t, []string{"100-200", "200-300", "300-400"}, h.bounds(t)[:3])
}

// TestMaintainPartitionsAsTheOwner refuses a role that is not the owner and names the owner. New partitions belong to
// the owner, whichever member creates them.
func TestMaintainPartitionsAsTheOwner(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPartitioned(t, 10, 20, 30)
	h.writeRows(t, 15, settledLongAgo)
	owner, app := "owner_"+h.dbName(t), "app_"+h.dbName(t)
	for _, s := range []string{
		`CREATE ROLE ` + owner, `CREATE ROLE ` + app + ` LOGIN PASSWORD 'p'`,
		`GRANT ALL ON SCHEMA public TO ` + app + `, ` + owner,
	} {
		h.exec(t, s)
	}
	t.Cleanup(func() {
		for _, s := range []string{`DROP OWNED BY ` + app + `, ` + owner + ` CASCADE`, `DROP ROLE ` + app, `DROP ROLE ` +
			owner} {
			_, err := h.pool.Exec(context.Background(), s)
			require.NoError(t, err)
		}
	})
	for _, table := range column[string](t, h, `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
		AND relkind IN ('r', 'p')`) {
		h.exec(t, `ALTER TABLE "`+table+`" OWNER TO `+owner)
		h.exec(t, `GRANT ALL ON "`+table+`" TO `+app)
	}
	h.exec(t, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO `+app)
	as := pgxHandle(t, "app", h.url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.User, cfg.ConnConfig.Password = app, "p"
	})
	_, err := as.tryMaintain(t)
	require.ErrorContains(t, err, "role "+app+" does not own table")
	require.ErrorContains(t, err, "GRANT "+owner+" TO "+app)
	require.Equal(t, 15, h.count(t, `SELECT count(*) FROM outbox`))
	require.Contains(t, value[string](t, h, `SELECT outcome FROM outbox_audit WHERE action = 'partitions' AND ended_at IS NOT NULL`),
		"role "+app+" does not own table")
	require.Contains(t, findings(t, h)["partitions_ahead"].Evidence, "the last run failed: role "+app+" does not own")
	h.exec(t, `GRANT `+owner+` TO `+app)
	h.exec(t, `REVOKE ALL ON SEQUENCE outbox_id_seq FROM PUBLIC, `+app+`, `+owner)
	_, err = as.tryMaintain(t)
	require.ErrorContains(t, err, "may not read the last id: GRANT SELECT ON SEQUENCE")
	h.exec(t, `GRANT SELECT ON SEQUENCE outbox_id_seq TO `+app)
	h.exec(t, `ALTER DEFAULT PRIVILEGES FOR ROLE `+app+` GRANT ALL ON TABLES TO PUBLIC`)
	require.Equal(t, []string{"outbox_p0"}, as.maintain(t).Dropped)
	require.Empty(t, column[string](t, h, `SELECT relname::text FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
		WHERE inhparent = 'outbox'::regclass AND (relowner <> $1::text::regrole OR relname = 'outbox_p10' AND EXISTS (
			SELECT FROM aclexplode(relacl) a WHERE a.grantee = 0))`, owner))
}

// TestNewestPartitionStays: while no partition can be created, the newest one is not dropped, because the next ones are
// modelled on it.
func TestNewestPartitionStays(t *testing.T) {
	t.Parallel()
	h := newPartitioned(t, 10, 20)
	h.exec(t, `ALTER TABLE outbox_p1 SET (autovacuum_vacuum_threshold = 777)`)
	h.writeRows(t, 25, settledLongAgo)
	h.exec(t, `CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not now''; END';
		CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()`)
	for range 2 {
		r, err := h.tryMaintain(t)
		require.ErrorContains(t, err, "not now")
		require.Equal(t, "the newest partition", r.Kept["outbox_p1"])
	}
	h.exec(t, `DROP EVENT TRIGGER refuse`)
	require.GreaterOrEqual(t, h.maintain(t).Ahead, 8)
	require.Equal(t, 1, h.count(t, `SELECT count(DISTINCT reloptions) FROM pg_class WHERE relname ~ '^outbox_p[0-9]+$'
		AND reloptions::text LIKE '%vacuum_threshold=777%'`))
}

// TestTransactionAcrossMaintenance: an open transaction that has published publishes again after partitions were
// created and dropped, both to partitions that it knows and to new ones, and its messages are committed. Its connection
// sees a new partition only in its next transaction, which was an error when partitions began just above the ids in
// use.
func TestTransactionAcrossMaintenance(t *testing.T) {
	t.Parallel()
	for _, open := range []func(testing.TB, string) handle{
		newPgxHandle, func(t testing.TB, url string) handle { return newSQLHandle(t, "pgx", url) },
	} {
		url := newMigratedDatabase(t)
		h := open(t, url)
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			intoPartitions(t, h, 10, 20)
			other := newPgxHandle(t, url)
			pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{}, nil)
			require.NoError(t, err)
			maintain := func() { other.maintain(t, func(c *admin.PartitionsConfig) { c.Retention = 0 }) }
			maintain()
			want := 0
			require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
				for round := range 3 { // no new lock in between, which would make its connection learn of partitions
					require.NoError(t, pub.PublishContext(ctx, "t", newMessage("of the transaction")), "round %d", round)
					want++
					for range 3 {
						other.writeRows(t, 10, "")
						maintain()
					}
				}
				return nil
			}))
			require.Equal(t, want, h.count(t, `SELECT count(*) FROM outbox WHERE convert_from(payload, 'UTF8') = 'of the transaction'`))
			require.Greater(t, h.count(t, `SELECT count(DISTINCT tableoid) FROM outbox`), 5)
		})
	}
}
