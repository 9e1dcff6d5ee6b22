package integration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

// carried is what belongs to the name of the outbox and not to its rows.
const carried = `SELECT string_agg(s, E'\n' ORDER BY s) FROM (
	SELECT 'acl ' || a::text s FROM pg_class c, unnest(c.relacl) a WHERE c.oid = 'outbox'::regclass
	UNION ALL SELECT 'column acl ' || a::text FROM pg_attribute c, unnest(c.attacl) a WHERE attrelid = 'outbox'::regclass
	UNION ALL SELECT pg_get_triggerdef(oid) || tgenabled::text FROM pg_trigger WHERE tgrelid = 'outbox'::regclass AND NOT tgisinternal
	UNION ALL SELECT to_jsonb(p)::text FROM pg_policies p WHERE tablename = 'outbox'
	UNION ALL SELECT replace(indexdef, ' ONLY ', ' ') FROM pg_indexes WHERE tablename = 'outbox'
	UNION ALL SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'outbox'::regclass AND contype <> 'n'
	UNION ALL SELECT relrowsecurity::text || relforcerowsecurity || relreplident::text || relowner::regrole ||
		obj_description(oid) || pg_relation_filenode('outbox_id_seq') || pg_get_serial_sequence('outbox', 'id')
		FROM pg_class WHERE oid = 'outbox'::regclass) x`

// TestConvertTable makes the outbox one in partitions and one table again, while it is written to with statements that
// are cached, and published from. Every message is published once and in order, no row is copied, and all that belongs
// to the outbox stays with its name.
func TestConvertTable(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	noLeaks(t)
	url := newOrderDatabase(t)
	writer := pgxHandle(t, "writer", url, manyConns)
	execScript(t, writer, `COMMENT ON TABLE outbox IS 'ours'; ALTER TABLE outbox REPLICA IDENTITY FULL;
		ALTER TABLE outbox ADD COLUMN gone int; ALTER TABLE outbox DROP COLUMN gone; ALTER TABLE outbox ADD COLUMN "Own" text;
		CREATE INDEX "Of a user" ON outbox ("Own", id DESC) WHERE "Own" <> '%';
		GRANT SELECT, INSERT ON outbox TO PUBLIC; GRANT UPDATE ("Own") ON outbox TO PUBLIC;
		CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER row BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION f();
		CREATE TRIGGER statement AFTER INSERT ON outbox EXECUTE FUNCTION f();
		ALTER TABLE outbox DISABLE TRIGGER statement;
		CREATE POLICY p ON outbox AS RESTRICTIVE FOR UPDATE TO PUBLIC USING (id > 0) WITH CHECK ("Own" <> '%');
		ALTER TABLE outbox ENABLE ROW LEVEL SECURITY`)
	before := value[string](t, writer, carried)
	file := value[int64](t, writer, `SELECT pg_relation_filenode('outbox')::bigint`)
	ctx, stop := context.WithCancel(context.Background())
	var converting sync.WaitGroup
	t.Cleanup(func() {
		stop()
		converting.Wait()
	})
	// Writers follow one another without a gap for seconds on a busy machine, so they leave one when it takes long.
	var gate sync.RWMutex
	convert := func(step func(context.Context) error) error {
		done, held := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(held)
			select {
			case <-done:
			case <-time.After(time.Second):
				gate.Lock()
				defer gate.Unlock()
				<-done
			}
		}()
		err := step(ctx)
		close(done)
		<-held
		return err
	}
	times, gaps := 0, 0
	l, while := newLedger(true), orderTime(time.Second)
	run := orderRun{writers: 3, time: while, gate: &gate, started: func(h handle) {
		over := time.Now().Add(while)
		converting.Go(func() {
			for ctx.Err() == nil && (times < 2 || time.Now().Before(over)) {
				begun := time.Now()
				if err := convert(func(ctx context.Context) error {
					return schema.Partition(ctx, h.db, schema.PartitionConfig{PartitionSize: 1 << 40})
				}); ctx.Err() == nil {
					assert.NoError(t, err)
					assert.Equal(t, file, value[int64](t, h, `SELECT pg_relation_filenode('outbox_p0')::bigint`))
					assert.Equal(t, before, value[string](t, h, carried))
					assert.Equal(t, 6, h.count(t, `SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass`))
					times++
				}
				if time.Since(begun) > time.Second {
					gaps++
				}
				if err := convert(func(ctx context.Context) error {
					return schema.Unpartition(ctx, h.db)
				}); ctx.Err() == nil {
					assert.NoError(t, err)
				}
			}
		})
	}}
	checkOrder(t, run, writer, newPgxHandle(t, url), l)
	converting.Wait()
	t.Logf("converted %d times, %d of them in a gap of the writers", times, gaps)
	require.GreaterOrEqual(t, times, 2)

	require.NoError(t, schema.Unpartition(t.Context(), writer.db))
	require.NoError(t, schema.Unpartition(t.Context(), writer.db), "it is one table already")
	require.Equal(t, before, value[string](t, writer, carried))
	require.Equal(t, file, value[int64](t, writer, `SELECT pg_relation_filenode('outbox')::bigint`))
	require.NoError(t, schema.Check(t.Context(), writer.db))
	require.Zero(t, writer.count(t, `SELECT count(*) FROM pg_class WHERE relname ~ '^outbox_p[0-9]'`))
	size := schema.PartitionConfig{PartitionSize: 1000}
	require.NoError(t, schema.Partition(t.Context(), writer.db, size))
	require.NoError(t, schema.Partition(t.Context(), writer.db, size), "it is in partitions")
	require.NoError(t, schema.Check(t.Context(), writer.db))
	require.Zero(t, writer.count(t, `SELECT count(*) FROM pg_class, aclexplode(relacl) a WHERE relname = 'outbox_p0'
		AND grantee <> relowner`), "nobody is to use a partition by its own name")
}

// TestConvertRefuses names what cannot be carried over, and leaves the outbox as it is.
func TestConvertRefuses(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	for object, prepare := range map[string]string{
		"view":               `CREATE VIEW v AS SELECT id FROM outbox`,
		"constraint":         `CREATE TABLE child (id bigint REFERENCES outbox)`,
		"unique without id":  `CREATE UNIQUE INDEX u ON outbox (uuid)`,
		"inherits":           `CREATE TABLE heir () INHERITS (outbox)`,
		"publication":        `CREATE PUBLICATION p FOR TABLE outbox`,
		"of all tables":      `CREATE PUBLICATION p FOR ALL TABLES`,
		"which is NOT VALID": `ALTER TABLE outbox ADD CONSTRAINT later CHECK (topic <> '') NOT VALID`,
		"belongs to a":       `ALTER TABLE outbox ADD COLUMN n bigint GENERATED ALWAYS AS IDENTITY`,
		"column":             `CREATE TABLE rows (r outbox)`,
		"outbox_p3":          `CREATE TABLE outbox_p3 (n int)`,
		"no ids are left":    `SELECT setval('outbox_id_seq', 9223372036854770000)`,
		"ids up to 10000000": `INSERT INTO outbox (id, uuid, topic, payload) VALUES (10000000, 'far', 't', 'p')`,
	} {
		t.Run(object, func(t *testing.T) {
			t.Parallel()
			h := newPgxHandle(t, newMigratedDatabase(t))
			h.exec(t, prepare)
			err := schema.Partition(t.Context(), h.db, schema.PartitionConfig{PartitionSize: 1000})
			require.ErrorContains(t, err, object)
			require.NoError(t, schema.Check(t.Context(), h.db))
			require.Equal(t, 1, h.count(t, `SELECT count(*) FROM pg_class WHERE relname = 'outbox' AND relkind = 'r'`))
			require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_below'`))
		})
	}
	h := newPgxHandle(t, newMigratedDatabase(t))
	for _, size := range []int64{0, -1, 1 << 60} {
		err := schema.Partition(t.Context(), h.db, schema.PartitionConfig{PartitionSize: size})
		require.ErrorContains(t, err, "PartitionConfig.PartitionSize")
	}
	require.NoError(t, schema.Partition(t.Context(), h.db, schema.PartitionConfig{PartitionSize: 10}))
	h.writeRows(t, 25, settledLongAgo)
	require.ErrorContains(t, schema.Unpartition(t.Context(), h.db),
		"outbox_p0, outbox_p1: rows are in more than one")
	h.exec(t, `SELECT setval('outbox_id_seq', 31)`)
	h.roll(t, func(c *admin.RollConfig) { c.Retention = time.Millisecond })
	h.writeRows(t, 1, "")
	require.NoError(t, schema.Unpartition(t.Context(), h.db))
	require.Equal(t, []int64{32}, h.ids(t, "outbox"))
	h.writeRows(t, 1, "")
	require.NoError(t, schema.Check(t.Context(), h.db))
}

// TestConvertReadsTheRowsOnceAndWaitsForNobody has a transaction in progress that uses the outbox, and looks at which
// tables the server reads from end to end.
func TestConvertReadsTheRowsOnceAndWaitsForNobody(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.writeRows(t, 1000, "")
	end := h.open(t, `INSERT INTO outbox (uuid, topic, payload) VALUES ('w', 't', 'p')`)
	tried, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	size := schema.PartitionConfig{PartitionSize: 1000}
	require.ErrorIs(t, schema.Partition(tried, h.db, size), context.DeadlineExceeded)
	h.writeRows(t, 1, "")
	end()
	var notices []string
	told := noticed(t, h, &notices)
	require.NoError(t, schema.Partition(t.Context(), told.db, size))
	require.Equal(t, []string{`verifying table "outbox"`,
		`partition constraint for table "outbox_p0" is implied by existing constraints`}, notices)
}

// TestConvertKilledAtEveryStep cuts the connection as soon as the server has one of the statements, of Partition and of
// Unpartition. The outbox works, and the next call does the rest. OUTBOX_LONG cuts at each of them, and not at each
// fourth.
func TestConvertKilledAtEveryStep(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	rows, steps := 10, 0
	h.writeRows(t, rows, "")
	ways := []func(handle) error{
		func(h handle) error {
			return schema.Partition(t.Context(), h.db, schema.PartitionConfig{PartitionSize: 1000})
		},
		func(h handle) error { return schema.Unpartition(t.Context(), h.db) },
	}
	for _, convert := range ways {
		n := 0
		require.NoError(t, convert(watchedHandle(t, h, func(_ string, sent bool) bool {
			if sent {
				n++
			}
			return true
		})))
		require.Greater(t, n, 3)
		steps = max(steps, n)
	}
	for _, cut := range someOf(t, steps) {
		for way, convert := range ways {
			n, last := 0, ""
			// All later ones are cut too: a process that was killed does not tidy up.
			_ = convert(watchedHandle(t, h, func(s string, sent bool) bool {
				if sent {
					n++
					last = s
				}
				return n <= cut
			}))
			h.writeRows(t, 1, "")
			rows++
			require.Equal(t, rows, h.count(t, `SELECT count(*) FROM outbox`), "after %s", last)
			checkShowsBound(t, h, "outbox_below", "migrate partition")
			require.NoError(t, schema.Check(t.Context(), h.db), "after %s", last)
			require.NoError(t, convert(h), "after %s", last)
			require.Equal(t, rows, h.count(t, `SELECT count(*) FROM outbox`), "after %s", last)
			require.Equal(t, way == 0, value[bool](t, h, `SELECT relkind = 'p' FROM pg_class WHERE oid = 'outbox'::regclass`))
			require.NoError(t, schema.Check(t.Context(), h.db), "after %s", last)
			require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_below'`))
		}
	}
}

// checkShowsBound: if there is a check of ids that was left by a process that was killed, Inspect shows it, and Check
// fails once it refuses messages; what both name as the cure works. The sequence is where it was afterwards.
func checkShowsBound(t *testing.T, h handle, check, again string) (shown bool) {
	t.Helper()
	list := func() []schema.Problem {
		found, err := schema.Inspect(t.Context(), h.db)
		require.NoError(t, err)
		return slices.DeleteFunc(found, func(p schema.Problem) bool {
			return !strings.HasPrefix(p.Object, "check "+check+" ")
		})
	}
	found := list()
	if h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = $1::text`, check) == 0 {
		require.Empty(t, found)
		return false
	}
	require.Len(t, found, 1, "the check %s is there", check)
	require.True(t, found[0].Warning)
	require.Contains(t, found[0].Cure, again)
	require.NoError(t, schema.Check(t.Context(), h.db), "nothing is refused so far")
	last := value[int64](t, h, `SELECT last_value FROM outbox_id_seq`)
	_, from, _ := strings.Cut(found[0].Found, "from id ")
	from = from[:strings.IndexByte(from, ' ')]
	h.exec(t, `SELECT setval('outbox_id_seq', `+from+` - 1)`)
	_, err := h.pool.Exec(t.Context(), `INSERT INTO outbox (uuid, topic, payload) VALUES ('refused', 't', 'p')`)
	require.ErrorContains(t, err, check, "the id it names is the first that is refused")
	found = list()
	require.Len(t, found, 1)
	require.False(t, found[0].Warning)
	require.Contains(t, found[0].Found, "refuses messages from id "+from)
	require.ErrorContains(t, schema.Check(t.Context(), h.db), check)
	h.exec(t, fmt.Sprintf(`SELECT setval('outbox_id_seq', %d)`, last))
	_, drop, _ := strings.Cut(found[0].Cure, ", or ")
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), drop)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()), "what is called again must cure it too")
	return true
}

const belowIsThere = `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_below'`

// TestConvertIDsComeClose: the check that Partition adds refuses ids from its end on. If ids come close to it while the
// table is read, or while the lock cannot be had, it is replaced by one that is farther before it refuses anything.
func TestConvertIDsComeClose(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	for name, holds := range map[string]string{
		"reading": `LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE`,
		"locking": `SELECT count(*) FROM outbox`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPgxHandle(t, newMigratedDatabase(t))
			h.writeRows(t, 1, "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var end func()
			watched := watchedHandle(t, h, func(s string, sent bool) bool {
				switch {
				case end == nil && !sent && strings.Contains(s, "VALIDATE"):
					end = h.open(t, holds)
					h.exec(t, `SELECT setval('outbox_id_seq', 1900)`)
				case end != nil && sent && strings.Contains(s, "DROP CONSTRAINT IF EXISTS"):
					end()
				}
				return true
			})
			require.NoError(t, schema.Partition(ctx, watched.db, schema.PartitionConfig{PartitionSize: 1000}))
			require.NotNil(t, end)
			require.Equal(t, "MINVALUE-5900", h.bounds(t)[0])
			require.Zero(t, h.count(t, belowIsThere))
		})
	}
}

// TestConvertTakesItsCheckAway ends Partition in several ways after it added its check, while others use the outbox all
// the time.
func TestConvertTakesItsCheckAway(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	t.Run("the commit is not confirmed", func(t *testing.T) {
		t.Parallel()
		h := newPgxHandle(t, newMigratedDatabase(t))
		added, cut := false, false
		err := schema.Partition(t.Context(), watchedHandle(t, h, func(s string, sent bool) bool {
			added = added || strings.Contains(s, "ADD CONSTRAINT")
			if added && !cut && sent && strings.EqualFold(s, "commit") {
				cut = true
				return false
			}
			return true
		}).db, schema.PartitionConfig{PartitionSize: 1000})
		require.True(t, cut)
		require.Error(t, err)
		require.Zero(t, h.count(t, belowIsThere), "%v", err)
	})
	t.Run("others follow each other closely", func(t *testing.T) {
		t.Parallel()
		h := newPgxHandle(t, newMigratedDatabase(t))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		busy, stop := context.WithCancel(t.Context())
		readers := pgxHandle(t, "readers", h.url, func(cfg *pgxpool.Config) { cfg.MaxConns = 12 })
		var reading sync.WaitGroup
		defer reading.Wait()
		defer stop()
		locks := 0
		var end func()
		watched := watchedHandle(t, h, func(s string, sent bool) bool {
			switch {
			case !sent && strings.Contains(s, "VALIDATE"):
				end = h.open(t, `SELECT count(*) FROM outbox`)
				for range 12 { // so many that a lock which is given up at once is hardly ever to be had
					reading.Go(func() {
						for busy.Err() == nil {
							_, _ = readers.pool.Exec(busy, `SELECT count(*), pg_sleep(0.02) FROM outbox`)
						}
					})
				}
			case sent && strings.HasPrefix(s, "LOCK TABLE"):
				if locks++; locks == 5 {
					cancel()
				}
			case sent && end != nil && strings.Contains(s, "DROP CONSTRAINT IF EXISTS"):
				end()
			}
			return true
		})
		require.ErrorIs(t, schema.Partition(ctx, watched.db, schema.PartitionConfig{PartitionSize: 1000}), context.Canceled)
		require.Zero(t, h.count(t, belowIsThere))
	})
}

// TestConvertCheckOfAnother has the check go away before the tables are swapped: without it the server would read the
// table while all others wait.
func TestConvertCheckOfAnother(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	validated := 0
	watched := watchedHandle(t, h, func(s string, sent bool) bool {
		if sent && strings.Contains(s, "VALIDATE") {
			validated++
		}
		if !sent && validated == 1 && strings.HasPrefix(s, "LOCK TABLE") {
			h.exec(t, `ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_below`)
		}
		return true
	})
	require.NoError(t, schema.Partition(t.Context(), watched.db, schema.PartitionConfig{PartitionSize: 1000}))
	require.Equal(t, 2, validated)
}

// TestConvertDropsTheCheckOfARoll: what a roll that was killed left on the default would refuse ids for good once that
// is the outbox.
func TestConvertDropsTheCheckOfARoll(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	h.exec(t, `SELECT setval('outbox_id_seq', 500)`)
	h.writeRows(t, 1, "")
	require.NoError(t, schemaPromise(t, h))
	require.NoError(t, schema.Unpartition(t.Context(), h.db))
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_default_bound'`))
}

// TestConvertKeepsPrivileges has grants that a grantee granted on, and default privileges: afterwards roles have what
// they had on the outbox, and nothing on its partitions, also on those of a roll.
func TestConvertKeepsPrivileges(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	first, second := "first_"+h.dbName(t), "second_"+h.dbName(t)
	execScript(t, h, `CREATE ROLE `+first+`; CREATE ROLE `+second+`; GRANT INSERT ON outbox TO `+first+` WITH GRANT OPTION;
		SET ROLE `+first+`; GRANT INSERT ON outbox TO `+second+`; RESET ROLE;
		ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO `+second+`;
		ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO PUBLIC`)
	t.Cleanup(func() {
		_, err := h.pool.Exec(context.Background(), `DROP OWNED BY `+first+`, `+second+` CASCADE`)
		require.NoError(t, err)
		_, err = h.pool.Exec(context.Background(), `DROP ROLE `+first+`, `+second)
		require.NoError(t, err)
	})
	rights := `SELECT string_agg(DISTINCT grantee::regrole || ' ' || privilege_type, ',') FROM pg_class, aclexplode(relacl)
		WHERE relname = 'outbox' AND grantee <> relowner`
	before := value[string](t, h, rights)
	require.NoError(t, schema.Partition(t.Context(), h.db, schema.PartitionConfig{PartitionSize: 1000}))
	require.Equal(t, before, value[string](t, h, rights))
	h.exec(t, `SELECT setval('outbox_id_seq', 2500)`)
	require.Contains(t, did(h.roll(t)), "made outbox_p5")
	require.Empty(t, column[string](t, h, `SELECT DISTINCT relname::text FROM pg_class, aclexplode(relacl)
		WHERE relname ~ '^outbox_(p[0-9]+|default)$' AND grantee <> relowner`))
}

// TestConvertEndsWhenStatementsAreCancelled has the swap cancelled each time, as its timeout or an operator does: all
// others wait while it works, so it does not go on for ever.
func TestConvertEndsWhenStatementsAreCancelled(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	execScript(t, h, `CREATE FUNCTION cancels() RETURNS event_trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'canceling statement' USING ERRCODE = 'query_canceled'; END $$;
		CREATE EVENT TRIGGER cancels ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION cancels()`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := schema.Partition(ctx, h.db, schema.PartitionConfig{PartitionSize: 1000})
	require.ErrorContains(t, err, "statements were cancelled 3 times while the outbox was locked")
	require.Zero(t, h.count(t, belowIsThere))
	h.exec(t, `DROP EVENT TRIGGER cancels`)
	require.NoError(t, schema.Partition(ctx, h.db, schema.PartitionConfig{PartitionSize: 1000}))
}
