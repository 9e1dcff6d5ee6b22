package integration_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

// bounds lists those of the leaves.
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

// TestLeavesAheadRunOut writes on when there are no leaves left: the default takes the messages, and old ones are
// deleted from it one by one. The next leaf begins where no statement in progress can have an id.
func TestLeavesAheadRunOut(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100, 200)
	h.writeRows(t, 450, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id IN (7, 300)`)
	require.Equal(t, 251, h.count(t, `SELECT count(*) FROM outbox_default`))
	r := h.roll(t)
	require.Equal(t, []string{"made outbox_p2", "made outbox_p3", "made outbox_p4", "emptied outbox_p0",
		"emptied outbox_p1", "deleted outbox_default"}, did(r))
	require.Equal(t, []string{"MINVALUE-100", "100-200", "550-650", "650-750", "750-850"}, h.bounds(t))
	require.Equal(t, int64(250), r.Deleted)
	require.Equal(t, []int64{7, 300}, h.ids(t, "outbox"))
	h.writeRows(t, 120, "")
	require.Equal(t, 100, h.count(t, `SELECT count(*) FROM outbox_default`), "a gap, and what was there")
	require.Equal(t, 21, h.count(t, `SELECT count(*) FROM outbox_p2`))

	// Many rows are read before the default is locked, not while it is.
	h = newLeaves(t, 100)
	h.writeRows(t, 10_200, "")
	require.NoError(t, schemaPromise(t, h), "a run that was killed has left a check")
	require.True(t, checkShowsBound(t, h, "outbox_default_bound", "outboxctl roll"))
	var read []string
	told := noticed(t, h, &read)
	require.Equal(t, []string{"made outbox_p1", "made outbox_p2", "made outbox_p3"}, did(told.roll(t)))
	require.Equal(t, []string{"MINVALUE-100", "10300-10400", "10400-10500", "10500-10600"}, h.bounds(t))
	require.Equal(t, slices.Repeat([]string{`verifying table "outbox_default"`,
		`updated partition constraint for default partition "outbox_default" is implied by existing constraints`}, 3),
		read)
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_default_bound'`))
	// What is dead in it is not read at all.
	h.exec(t, `DELETE FROM outbox`)
	h.exec(t, `SELECT setval('outbox_id_seq', 10350)`)
	require.NotZero(t, h.count(t, `SELECT pg_relation_size('outbox_default')`))
	require.Contains(t, did(h.roll(t)), "made outbox_p4")
	require.Zero(t, h.count(t, `SELECT pg_relation_size('outbox_default')`))
}

// schemaPromise leaves the check that a run makes before a leaf.
func schemaPromise(t *testing.T, h handle) error {
	_, err := h.pool.Exec(t.Context(), `ALTER TABLE outbox_default ADD CONSTRAINT outbox_default_bound
		CHECK (id IS NOT NULL AND (id < 20000 OR id >= 30000)) NOT VALID`)
	return err
}

// noticed is a handle whose server says what tables it reads from end to end to find out that rows are where they
// should be, and where it need not.
func noticed(t *testing.T, h handle, list *[]string) handle {
	t.Helper()
	var mu sync.Mutex
	return pgxHandle(t, "noticed", h.url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["client_min_messages"] = "debug1"
		cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(n.Message, `verifying table "outbox`) && !strings.Contains(n.Message, "outbox_p") || strings.Contains(n.Message, "partition constraint") {
				*list = append(*list, n.Message)
			}
		}
	})
}

// TestFarDeletes has old rows in the default whose ids are far apart: the gap between them is not walked.
func TestFarDeletes(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100, 200)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload, published_at, created_at) SELECT id, id, 't', 'p',
		now() - interval '2 days', now() - interval '2 days' FROM unnest('{250, 1000000000000}'::bigint[]) id`)
	r := h.roll(t)
	require.Contains(t, did(r), "deleted outbox_default")
	require.Equal(t, int64(2), r.Deleted)
	require.Empty(t, h.ids(t, "outbox"))
}

// TestFarIDs has messages whose ids are far above all leaves: they are published and kept in the default, and no leaf
// is made over them.
func TestFarIDs(t *testing.T) {
	t.Parallel()
	h := newLeaves(t, 100, 200)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (230, 'near', 't', 'p'), (100000, 'far', 't', 'p')`)
	h.roll(t)
	require.Equal(t, []string{"MINVALUE-100", "100-200", "231-331", "331-431"}, h.bounds(t))
	h.exec(t, `SELECT setval('outbox_id_seq', 1000000)`)
	h.roll(t)
	require.Contains(t, h.bounds(t), "1000100-1000200")
	require.Equal(t, []int64{230, 100000}, h.ids(t, "outbox"))
}

// TestLeafChangesSize makes larger leaves from some id on.
func TestLeafChangesSize(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100, 200, 300)
	h.roll(t)
	require.Equal(t, []string{"MINVALUE-100", "100-200", "200-300", "300-400"}, h.bounds(t))
	h.roll(t, func(c *admin.RollConfig) { c.PartitionSize = 1000 })
	want := []string{"MINVALUE-100", "100-200", "200-300", "300-400", "400-1400", "1400-2400", "2400-3400", "3400-4400"}
	require.Equal(t, want, h.bounds(t))
	h.exec(t, `SELECT setval('outbox_id_seq', 500)`)
	r := h.roll(t)
	require.Equal(t, []string{"made outbox_p8", "dropped outbox_p0", "dropped outbox_p1"}, did(r))
	require.Equal(t, append(want[2:], "4400-5400"), h.bounds(t), "the newest leaf says how large the next one is")
	h.exec(t, `CREATE TABLE outbox_p9 (of_another_program int)`)
	h.exec(t, `SELECT setval('outbox_id_seq', 1500)`)
	require.Equal(t, "made outbox_p10", did(h.roll(t))[0], "a name that another program has is left to it")
}

// TestRequeuedBetweenLookAndLock has messages change after the leaf was read and before it is locked.
func TestRequeuedBetweenLookAndLock(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		act   func(t *testing.T, h handle)
		did   string
		stays []int64
	}{
		{"made pending by hand", func(t *testing.T, h handle) {
			h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 8`)
			h.exec(t, `UPDATE outbox SET published_at = NULL, due_at = now() + interval '1 h', attempts = 1 WHERE id = 9`)
			h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id = 10`)
		}, "emptied", []int64{3, 8, 9, 10}},
		{"published", func(t *testing.T, h handle) {
			h.exec(t, `UPDATE outbox SET published_at = now() WHERE id = 3`)
		}, "emptied", []int64{3}},
		{"written", func(t *testing.T, h handle) {
			h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (0, 'late', 't', 'p')`)
		}, "emptied", []int64{0, 3}},
		{"replayed and published again", func(t *testing.T, h handle) {
			a, err := admin.New(h.db, admin.Config{Actor: "ann"}, nil)
			require.NoError(t, err)
			r, err := a.Replay(t.Context(), admin.Act{Filter: admin.Filter{In: admin.Outbox, IDs: []string{"8"}}})
			require.NoError(t, err)
			require.Equal(t, int64(1), r.Touched)
			h.exec(t, `UPDATE outbox SET published_at = now() WHERE id = 8`)
		}, "kept", nil},
		{"many made pending", func(t *testing.T, h handle) {
			h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id < 1100`)
		}, "kept", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newLeaves(t, 1200, 2000, 3000, 4000, 5000, 6000)
			h.writeRows(t, 1199, settledLongAgo)
			h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 3`)
			h.exec(t, `SELECT setval('outbox_id_seq', 1201)`)
			acted := false
			r := watchedHandle(t, h, func(statement string, sent bool) bool {
				if !sent && !acted && strings.Contains(statement, `public.outbox_p0 IN ACCESS EXCLUSIVE`) {
					acted = true
					c.act(t, h)
				}
				return true
			}).roll(t)
			require.True(t, acted)
			require.Equal(t, []string{c.did + " outbox_p0"}, did(r))
			if c.did == "kept" {
				require.Equal(t, 1199, h.count(t, `SELECT count(*) FROM outbox`))
				require.Contains(t, r.Leaves[0].Why, "changed meanwhile")
			} else {
				require.Equal(t, c.stays, h.ids(t, "outbox"))
			}
		})
	}
}

// TestLookSeesAllThatIsWritten has a transaction in progress when the leaf is read. What it writes could be committed
// and published before the leaf is locked, and would be removed before its time.
func TestLookSeesAllThatIsWritten(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10, 20, 30, 40, 50, 60)
	h.writeRows(t, 11, settledLongAgo)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `INSERT INTO outbox (id, uuid, topic, payload) VALUES (0, 'late', 't', 'p')`)
	require.NoError(t, err)
	commit := sync.OnceFunc(func() { assert.NoError(t, tx.Commit(t.Context())) })
	defer commit()
	r := watchedHandle(t, h, func(statement string, sent bool) bool {
		if !sent && strings.Contains(statement, `public.outbox_p0 IN ACCESS EXCLUSIVE`) {
			commit()
			h.exec(t, `UPDATE outbox SET published_at = now() WHERE id = 0`)
		}
		return true
	}).roll(t)
	commit()
	require.Equal(t, []string{"kept outbox_p0"}, did(r))
	require.Equal(t, 1, h.count(t, `SELECT count(*) FROM outbox WHERE id = 0`))
	require.Equal(t, []string{"emptied outbox_p0"}, did(h.roll(t)))
	require.Equal(t, 1, h.count(t, `SELECT count(*) FROM outbox WHERE id = 0`))
}

// TestRollWithoutOwnership refuses a role that has all privileges and is not the owner, and names the owner. Leaves
// that a member of the owner makes are the owner's.
func TestRollWithoutOwnership(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10, 20, 30)
	h.writeRows(t, 15, settledLongAgo)
	owner, app := "owner_"+h.dbName(t), "app_"+h.dbName(t)
	for _, s := range []string{
		`CREATE ROLE ` + owner, `CREATE ROLE ` + app + ` LOGIN PASSWORD 'p'`,
		`GRANT ALL ON SCHEMA public TO ` + app + `, ` + owner,
	} {
		h.exec(t, s)
	}
	t.Cleanup(func() {
		for _, s := range []string{`DROP OWNED BY ` + app + `, ` + owner + ` CASCADE`, `DROP ROLE ` + app, `DROP ROLE ` + owner} {
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
	_, err := as.tryRoll(t)
	require.ErrorContains(t, err, "role "+app+" does not own table")
	require.ErrorContains(t, err, "GRANT "+owner+" TO "+app)
	require.Equal(t, 15, h.count(t, `SELECT count(*) FROM outbox`))
	require.Contains(t, value[string](t, h, `SELECT outcome FROM outbox_audit WHERE action = 'roll' AND ended_at IS NOT NULL`),
		"role "+app+" does not own table")
	require.Contains(t, findings(t, h)["roll_owner"].Evidence, `role "`+app+`", which rolled the outbox last, does not own`)
	h.exec(t, `REVOKE INSERT ON outbox_audit FROM `+app)
	_, err = as.tryRoll(t)
	require.ErrorContains(t, err, "does not own table", "it may not write the audit log either")
	require.Contains(t, did(as.roll(t, func(c *admin.RollConfig) { c.DryRun = true })), "emptied outbox_p0")
	h.exec(t, `GRANT `+owner+` TO `+app)
	h.exec(t, `REVOKE ALL ON SEQUENCE outbox_id_seq FROM PUBLIC, `+app+`, `+owner)
	for _, dry := range []bool{true, false} {
		_, err = as.tryRoll(t, func(c *admin.RollConfig) { c.DryRun = dry })
		require.ErrorContains(t, err, "the last id is not known: GRANT SELECT ON SEQUENCE")
	}
	h.exec(t, `GRANT SELECT ON SEQUENCE outbox_id_seq TO `+app)
	require.Contains(t, did(as.roll(t)), "emptied outbox_p0")
	require.Empty(t, column[string](t, h, `SELECT relname::text FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
		WHERE inhparent = 'outbox'::regclass AND relowner <> $1::text::regrole`, owner))
}

func (h handle) dbName(t testing.TB) string {
	t.Helper()
	return strings.ToLower(strings.NewReplacer("-", "_").Replace(value[string](t, h, `SELECT current_database()::text`)))
}

// TestRollRefuses names what is at fault.
func TestRollRefuses(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	_, err := h.tryRoll(t)
	require.ErrorIs(t, err, admin.ErrNotPartitioned)
	intoLeaves(t, h)
	r := h.roll(t)
	require.Contains(t, r.Leaves[0].Why, "set RollConfig.PartitionSize")
	for text, change := range map[string]func(*admin.RollConfig){
		"RollConfig.Retention":     func(c *admin.RollConfig) { c.Retention = -1 },
		"RollConfig.PartitionSize": func(c *admin.RollConfig) { c.PartitionSize = -1 },
		"RollConfig.At":            func(c *admin.RollConfig) { c.At = time.Now().Add(time.Hour) },
	} {
		_, err := h.tryRoll(t, change)
		require.ErrorContains(t, err, text)
		require.ErrorIs(t, err, admin.ErrInvalid)
	}
	h.roll(t, func(c *admin.RollConfig) { c.PartitionSize = 100 })
	require.Equal(t, []string{"100-200", "200-300", "300-400"}, h.bounds(t)[:3])
}

// TestLeavesBeginAboveIDsThatMovedOn: ids are handed out while a roll tries for its locks. A statement that began
// before the leaf was made, and has an id of it, would be refused: the leaf must be far enough ahead when the locks are
// had.
func TestLeavesBeginAboveIDsThatMovedOn(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	moved := false
	watched := watchedHandle(t, h, func(statement string, sent bool) bool {
		if !moved && !sent && strings.Contains(statement, "SHARE UPDATE EXCLUSIVE") {
			moved = true
			h.exec(t, `SELECT setval('outbox_id_seq', 190)`)
		}
		return true
	})
	watched.roll(t, func(c *admin.RollConfig) { c.PartitionSize = 100 })
	require.True(t, moved)
	bounds := h.bounds(t)
	require.Equal(t, []string{"290-390", "390-490", "490-590"}, bounds[1:4], "%v", bounds)
}

// TestALeafIsPromisedAboveIDsThatMovedOn: while the default holds messages, it promises to hold none of a leaf before
// that is made. The promise refuses messages, so it must be far enough ahead too when its lock is had, and what was put
// there by hand is passed by.
func TestALeafIsPromisedAboveIDsThatMovedOn(t *testing.T) {
	extended(t)
	t.Parallel()
	for name, step := range map[string]string{
		"ids moved on": `SELECT setval('outbox_id_seq', 250)`,
		"by hand":      `INSERT INTO outbox (id, uuid, topic, payload) VALUES (251, 'hand', 't', '')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newLeaves(t, 100)
			h.exec(t, `SELECT setval('outbox_id_seq', 100)`)
			h.writeRows(t, 1, "") // in the default
			moved := false
			watched := watchedHandle(t, h, func(statement string, sent bool) bool {
				if !moved && !sent && strings.Contains(statement, "outbox_default") &&
					strings.Contains(statement, "ACCESS EXCLUSIVE") {
					moved = true
					h.exec(t, step)
				}
				return true
			})
			watched.roll(t, func(c *admin.RollConfig) { c.PartitionSize = 100 })
			require.True(t, moved)
			first := map[string]string{"ids moved on": "350-450", "by hand": "252-352"}[name]
			require.Contains(t, h.bounds(t), first)
			h.writeRows(t, 10, "")
		})
	}
}

// TestLeavesAheadAreNotKnownToBeEmpty has leaves analyzed before anything is in them: a plan that is made then would
// read them from end to end.
func TestLeavesAheadAreNotKnownToBeEmpty(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 10, 20, 30, 40, 50)
	h.exec(t, `ANALYZE outbox`)
	tuples := `SELECT reltuples::bigint FROM pg_class WHERE relname ~ '^outbox_p[0-9]$' ORDER BY relname`
	if h.count(t, `SELECT current_setting('server_version_num')::int`) < 140000 {
		t.Skip("this server does not tell a table that is empty from one that was never analyzed")
	}
	require.Equal(t, []int64{0, 0, 0, 0, 0}, column[int64](t, h, tuples))
	r := h.roll(t)
	require.Contains(t, did(r), "reset outbox_p4")
	require.Equal(t, []int64{-1, -1, -1, -1, -1}, column[int64](t, h, tuples))
	require.Empty(t, did(h.roll(t)))
}

// TestLeavesThatAreSplit: a leaf that somebody made with partitions of its own has no rows itself. It is no empty one.
func TestLeavesThatAreSplit(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, split := range []string{"outbox_p0", "outbox_default"} {
		t.Run(split, func(t *testing.T) {
			h := newLeaves(t, 10, 20, 30, 40, 50)
			bounds := column[string](t, h, `SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = '`+split+`'`)
			execScript(t, h,
				`DROP TABLE `+split+`; CREATE TABLE `+split+` PARTITION OF outbox `+bounds[0]+` PARTITION BY HASH (id)`)
			for _, n := range []string{"0", "1"} {
				h.exec(t, `CREATE TABLE `+split+`_part`+n+` PARTITION OF `+split+
					` FOR VALUES WITH (MODULUS 2, REMAINDER `+n+`)`)
			}
			h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (1000, 'far', 't', '')`)
			h.writeRows(t, 45, "")
			before := h.ids(t, "outbox")
			rolled := h.roll(t)
			if split == "outbox_p0" {
				require.Contains(t, did(rolled), "kept outbox_p0")
			}
			require.Equal(t, before, h.ids(t, "outbox"))
			h.exec(t, `DELETE FROM outbox WHERE id BETWEEN 10 AND 999`)
			require.ErrorContains(t, schema.Unpartition(t.Context(), h.db), split+" is in partitions itself")
		})
	}
}
