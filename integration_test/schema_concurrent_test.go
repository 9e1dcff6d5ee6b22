package integration_test

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/schema"
)

// withConcurrent replaces the migrations for a test, which must not be parallel: the index on dead messages is made by
// a second migration, outside of transactions, and a third is an ordinary one again.
func withConcurrent(t *testing.T, second string) {
	t.Helper()
	_, err := makeTemplate() // of the real migrations
	require.NoError(t, err)
	was := migrations.FS
	t.Cleanup(func() { migrations.FS = was })
	first := ""
	for _, m := range allMigrations(t) {
		first += m.Text
	}
	statement := "CREATE INDEX {outbox_dead} ON {outbox} (lane, id)\n    WHERE dead_at IS NOT NULL;"
	require.Contains(t, first, statement)
	migrations.FS = fstest.MapFS{
		"0001_outbox_and_inbox.sql": {Data: []byte(strings.Replace(first, statement, "", 1))},
		"0002_dead.concurrent.sql":  {Data: []byte(second)},
		"0003_note.sql":             {Data: []byte("-- why\nALTER TABLE {lanes} ADD note text;\n")},
	}
}

const deadConcurrently = "-- for the operator\nCREATE INDEX CONCURRENTLY {outbox_dead} ON {outbox} (lane, id)\n    " +
	"WHERE dead_at IS NOT NULL;\n"

func versions(list []schema.Migration) (got []int) {
	for _, m := range list {
		got = append(got, m.Version)
	}
	return got
}

// migrates calls Migrate and expects these versions to run.
func migrates(t *testing.T, h handle, names sqltext.Tables, cfg schema.MigrateConfig, want ...int) {
	t.Helper()
	ran, err := schema.Migrate(t.Context(), h.with(t, names).db, cfg)
	require.NoError(t, err, h.name)
	assert.Equal(t, want, versions(ran), h.name)
}

func concurrentHandles(t *testing.T, url string) []handle {
	return append(openHandles(t, url), newPgBouncerHandle(t, url))
}

func TestConcurrentMigrationOverEachHandle(t *testing.T) {
	extended(t)
	withConcurrent(t, deadConcurrently)
	for _, h := range concurrentHandles(t, newDatabase(t)) {
		names := otherNames
		names.Schema += h.name
		migrates(t, h, names, schema.MigrateConfig{}, 1, 2, 3)
		migrates(t, h, names, schema.MigrateConfig{})
		found, err := schema.Inspect(t.Context(), h.with(t, names).db)
		require.NoError(t, err)
		assert.Empty(t, found, h.name)
		usable(t, h, names)
	}
}

func TestMigrateToAVersion(t *testing.T) {
	withConcurrent(t, deadConcurrently)
	h := newPgxHandle(t, newDatabase(t))
	for _, to := range []int{-1, 4} {
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{To: to})
		require.ErrorContains(t, err, "MigrateConfig.To")
	}
	list, err := schema.Status(t.Context(), h.db)
	require.NoError(t, err)
	assert.Equal(t, []schema.Migration{
		{Version: 1, Name: "outbox_and_inbox"}, {Version: 2, Name: "dead", Concurrent: true}, {Version: 3, Name: "note"},
	}, list)

	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 1}, 1)
	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 2}, 2)
	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 1})
	h.exec(t, newerMigration)
	list, err = schema.Status(t.Context(), h.db)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2, 3, 9999}, versions(list))
	for i, applied := range []bool{true, true, false, true} {
		assert.Equal(t, applied, !list[i].AppliedAt.IsZero(), "%+v", list[i])
	}
}

func TestConcurrentMigrationPutOff(t *testing.T) {
	withConcurrent(t, deadConcurrently)
	for _, h := range openHandles(t, newDatabase(t)) {
		names := sqltext.Tables{Schema: strings.ReplaceAll(h.name, "-", "_")}
		migrates(t, h, names, schema.MigrateConfig{SkipConcurrent: true}, 1, 3)
		require.NoError(t, schema.Check(t.Context(), h.with(t, names).db), h.name)
		found, err := schema.Inspect(t.Context(), h.with(t, names).db)
		require.NoError(t, err)
		require.Len(t, found, 1)
		assert.True(t, found[0].Warning)
		assert.Contains(t, found[0].Found, "0002_dead")
		migrates(t, h, names, schema.MigrateConfig{}, 2)
	}
}

// TestOrdinaryMigrationMayNotBeMissing tells a gap that nothing explains from a concurrent migration that was put off.
func TestOrdinaryMigrationMayNotBeMissing(t *testing.T) {
	withConcurrent(t, deadConcurrently)
	h := newPgxHandle(t, newDatabase(t))
	require.NoError(t, makeTables(t.Context(), h.db))
	h.exec(t, `delete from outbox_migrations where version = 1`)
	_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
	require.ErrorIs(t, err, schema.ErrSchemaChanged)
	require.ErrorContains(t, err, "version 1 (outbox_and_inbox) was not")
}

// TestConcurrentMigrationByManyAtOnce has writers that always are in a transaction, a reader with an old snapshot that
// ends only when the index build waits for it, and a migrator of each kind. A migrator that waited for the lock in a
// statement would have a snapshot for which the build waits: a deadlock.
func TestConcurrentMigrationByManyAtOnce(t *testing.T) {
	extended(t)
	withConcurrent(t, deadConcurrently)
	url := newDatabase(t)
	handles := concurrentHandles(t, url)
	admin := newPgxHandle(t, url)
	migrates(t, admin, sqltext.Tables{}, schema.MigrateConfig{To: 1}, 1)

	stopped, stop := context.WithCancel(t.Context())
	defer stop()
	var writers errgroup.Group
	for range 2 {
		writers.Go(func() error {
			pub, err := outbox.NewPublisher(admin.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
			for err == nil && stopped.Err() == nil {
				err = pub.Publish("orders", newMessage("hello"))
			}
			return err
		})
	}
	old, err := admin.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.Background()) }()
	_, err = old.Exec(t.Context(), `set transaction isolation level repeatable read`)
	require.NoError(t, err)
	_, err = old.Exec(t.Context(), `select count(*) from outbox`)
	require.NoError(t, err)

	var group errgroup.Group
	ran := make([][]schema.Migration, 2*len(handles))
	for i := range ran {
		group.Go(func() (err error) {
			ran[i], err = schema.Migrate(t.Context(), handles[i%len(handles)].db, schema.MigrateConfig{})
			return err
		})
	}
	buildWaits(t, admin)
	require.NoError(t, old.Commit(t.Context()))
	require.NoError(t, group.Wait())
	stop()
	require.NoError(t, writers.Wait())
	var all []int
	for _, r := range ran {
		all = append(all, versions(r)...)
	}
	assert.ElementsMatch(t, []int{2, 3}, all, "each ran once")
	require.NoError(t, schema.Check(t.Context(), admin.db))
}

// buildWaits returns once an index build of this database waits for other transactions.
func buildWaits(t *testing.T, h handle) {
	t.Helper()
	eventually(t, func() bool {
		return h.count(t, `select count(*) from pg_stat_progress_create_index where datname = current_database() `+
			`and phase like 'waiting for%'`) > 0
	}, "an index build waits for a transaction")
}

// TestConcurrentMigrationThatFailed leaves an invalid index behind and is repeated.
func TestConcurrentMigrationThatFailed(t *testing.T) {
	withConcurrent(t, "CREATE UNIQUE INDEX CONCURRENTLY {outbox_dead} ON {outbox} (topic) WHERE dead_at IS NOT NULL;\n"+
		"DROP INDEX CONCURRENTLY IF EXISTS {outbox_held};\n")
	for _, h := range concurrentHandles(t, newDatabase(t)) {
		names := sqltext.Tables{Schema: strings.ReplaceAll(h.name, "-", "_")}
		migrates(t, h, names, schema.MigrateConfig{To: 1}, 1)
		for range 2 {
			h.exec(t, names.Render(`insert into {outbox} (uuid, topic, payload, dead_at) values ('', 'same', '', now())`))
		}
		ran, err := schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.Equal(t, "23505", text.SQLState(err), "%v", err)
		require.ErrorContains(t, err, "0002_dead")
		assert.Empty(t, ran)
		const invalid = `select count(*) from pg_index where not indisvalid and indrelid = $1::text::regclass`
		assert.Equal(t, 1, h.count(t, invalid, names.OutboxName()), "what the failed build left")

		h.exec(t, names.Render(`delete from {outbox}`))
		migrates(t, h, names, schema.MigrateConfig{To: 2}, 2)
		assert.Zero(t, h.count(t, invalid, names.OutboxName()))
		assert.Equal(t, 1, h.count(t, `select count(*) from pg_index where indisunique and indpred is not null `+
			`and indrelid = $1::text::regclass`, names.OutboxName()))
	}
}

// TestConcurrentMigrationWhoseProcessDied finds the server still building the index, and lets it.
func TestConcurrentMigrationWhoseProcessDied(t *testing.T) {
	extended(t)
	withConcurrent(t, deadConcurrently)
	h := newPgxHandle(t, newDatabase(t))
	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 1}, 1)
	old, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.Background()) }()
	_, err = old.Exec(t.Context(), `insert into outbox (uuid, topic, payload) values ('', 'orders', '')`)
	require.NoError(t, err)

	var group errgroup.Group
	group.Go(func() error { // what the process that died has left running
		_, err := (*core.DB)(h.db).Exec(t.Context(), `create index concurrently outbox_dead on outbox (lane, id) `+
			`where dead_at is not null`)
		return err
	})
	buildWaits(t, h)
	left := value[int](t, h, `select 'outbox_dead'::regclass::oid::int`)
	group.Go(func() error {
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
		return err
	})
	// The migrator looks again and again; it must not wait in a statement, for which the build would wait.
	eventually(t, func() bool {
		return h.count(t, `select count(*) from pg_stat_activity where datname = current_database() `+
			`and query like '%pg_stat_progress_create_index p%' and pid <> pg_backend_pid()`) > 0
	}, "the migrator waits for the build")
	require.NoError(t, old.Commit(t.Context()))
	require.NoError(t, group.Wait())
	assert.Equal(t, left, value[int](t, h, `select 'outbox_dead'::regclass::oid::int`), "it was not built twice")
	require.NoError(t, schema.Check(t.Context(), h.db))
}

// TestConcurrentMigrationWhoseProcessDiedDropping finds the server still dropping what an earlier build left.
func TestConcurrentMigrationWhoseProcessDiedDropping(t *testing.T) {
	extended(t)
	withConcurrent(t, deadConcurrently)
	h := newPgxHandle(t, newDatabase(t))
	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 1}, 1)
	h.exec(t, `create index outbox_dead on outbox (lane, id) where dead_at is not null`)
	h.exec(t, `update pg_index set indisvalid = false where indexrelid = 'outbox_dead'::regclass`)
	old, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.Background()) }()
	_, err = old.Exec(t.Context(), `insert into outbox (uuid, topic, payload) values ('', 'orders', '')`)
	require.NoError(t, err)
	drops := func(n int, reason string) {
		t.Helper()
		eventually(t, func() bool {
			return h.count(t, `select count(*) from pg_stat_activity where datname = current_database() `+
				`and wait_event_type = 'Lock' and query ilike 'drop index concurrently%'`) == n
		}, "%s", reason)
	}

	var group errgroup.Group
	group.Go(func() error { // what the process that died has left running
		_, err := (*core.DB)(h.db).Exec(t.Context(), `drop index concurrently outbox_dead`)
		return err
	})
	drops(1, "the drop waits for the transaction")
	group.Go(func() error {
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
		return err
	})
	drops(2, "that of the migrator waits as well")
	require.NoError(t, old.Commit(t.Context()))
	require.NoError(t, group.Wait())
	require.NoError(t, schema.Check(t.Context(), h.db))
}

// TestMigrateCancelled gives up while the build waits, and another one finishes the work.
func TestMigrateCancelled(t *testing.T) {
	extended(t)
	withConcurrent(t, deadConcurrently)
	for _, h := range openHandles(t, newDatabase(t)) {
		names := sqltext.Tables{Schema: strings.ReplaceAll(h.name, "-", "_")}
		admin := newPgxHandle(t, h.url)
		migrates(t, h, names, schema.MigrateConfig{To: 1}, 1)
		old, err := admin.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = old.Exec(t.Context(), names.Render(`insert into {outbox} (uuid, topic, payload) values ('', 'orders', '')`))
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := schema.Migrate(ctx, h.with(t, names).db, schema.MigrateConfig{})
			failed <- err
		}()
		buildWaits(t, admin)
		cancel()
		require.Error(t, <-failed, h.name)
		require.NoError(t, old.Commit(t.Context()))
		migrates(t, h, names, schema.MigrateConfig{}, 2, 3)
		require.NoError(t, schema.Check(t.Context(), h.with(t, names).db), h.name)
	}
}

// TestMigrateWithOneConnection says so instead of waiting for ever; a pgx pool needs none to spare.
func TestMigrateWithOneConnection(t *testing.T) {
	withConcurrent(t, deadConcurrently)
	url := newDatabase(t)
	h := newSQLHandle(t, "pgx", url)
	h.sql.SetMaxOpenConns(1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	began := time.Now()
	ran, err := schema.Migrate(ctx, h.db, schema.MigrateConfig{})
	require.ErrorContains(t, err, "allow the pool two", "after %s", time.Since(began))
	assert.Equal(t, []int{1}, versions(ran))
	h.sql.SetMaxOpenConns(2)
	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{}, 2, 3)
}

// TestFilesOfConcurrentMigrations runs them with each tool, after a build that failed before and left an invalid index.
func TestFilesOfConcurrentMigrations(t *testing.T) {
	extended(t)
	withConcurrent(t, deadConcurrently)
	want := map[schema.Format][]string{
		schema.Goose: {"0007_watermill_outbox_and_inbox.sql", "0008_watermill_dead.sql", "0009_watermill_note.sql"},
		schema.Plain: {"0007_watermill_outbox_and_inbox.sql", "0008_watermill_dead.sql", "0009_watermill_note.sql"},
		schema.GolangMigrate: {"0007_watermill_outbox_and_inbox.up.sql",
			"0008_watermill_dead.up.sql", "0009_watermill_dead.up.sql", "0010_watermill_dead.up.sql",
			"0011_watermill_note.up.sql"},
	}
	for _, names := range []sqltext.Tables{{}, otherNames} {
		for format, run := range migrationTools {
			t.Run(string(format)+" "+names.OutboxName(), func(t *testing.T) {
				_, got := filesOf(t, schema.FilesConfig{Format: format, Tables: outbox.Tables(names), StartAt: 7})
				assert.Equal(t, want[format], got)
				_, got = filesOf(t, schema.FilesConfig{Format: format, Tables: outbox.Tables(names), From: 3, StartAt: 20})
				require.Len(t, got, 1)
				assert.Contains(t, got[0], "0020_watermill_note")
				_, got = filesOf(t, schema.FilesConfig{Format: format, Tables: outbox.Tables(names), From: 4})
				assert.Empty(t, got)

				h := newPgxHandle(t, newDatabase(t))
				migrates(t, h, names, schema.MigrateConfig{To: 1}, 1)
				h.exec(t, names.Render(`create index {outbox_dead} on {outbox} (lane, id) where dead_at is not null`))
				h.exec(t,
					`update pg_index set indisvalid = false where indexrelid in (select oid from pg_class where relname = $1)`,
					strings.Trim(names.Render("{outbox_dead}"), `"`))
				require.Error(t, schema.Check(t.Context(), h.with(t, names).db))

				rest, _ := filesOf(t, schema.FilesConfig{Format: format, Tables: outbox.Tables(names), From: 2})
				run(t, h.url, rest)
				migrates(t, h, names, schema.MigrateConfig{})
				found, err := schema.Inspect(t.Context(), h.with(t, names).db)
				require.NoError(t, err)
				assert.Empty(t, found)
			})
		}
	}
}
