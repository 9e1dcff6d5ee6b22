package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/schema"
)

// otherNames are names that only work if every statement quotes and uses them.
var otherNames = sqltext.Tables{
	Schema: "Shop-1", Outbox: "select", Lanes: "My-Lanes", Forwarders: "from", Migrations: "Table$1", Inbox: "_INBOX",
	Queue: "QUEUE", Idempotency: "Keys",
}

func allMigrations(t testing.TB) []migrations.Migration {
	t.Helper()
	all, err := migrations.All()
	require.NoError(t, err)
	return all
}

func checkSchema(ctx context.Context, db *outbox.DB) error {
	_, err := schema.Check(ctx, db, schema.CheckConfig{})
	return err
}

func checkOnlyOutbox(ctx context.Context, db *outbox.DB) error {
	_, err := schema.Check(ctx, db, schema.CheckConfig{OnlyOutbox: true})
	return err
}

// schemaProblems returns all problems, and an error only if the check failed.
func schemaProblems(ctx context.Context, db *outbox.DB) ([]schema.Problem, error) {
	found, err := schema.Check(ctx, db, schema.CheckConfig{})
	if errors.Is(err, schema.ErrSchemaChanged) {
		err = nil
	}
	return found, err
}

func TestMigrateIsIdempotent(t *testing.T) {
	t.Parallel()
	overEach(t, newDatabase(t), func(t *testing.T, h handle) {
		names := sqltext.Tables{Schema: strings.ReplaceAll(h.name, "-", "_")}
		ran, err := schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.NoError(t, err)
		require.Len(t, ran, len(allMigrations(t)), h.name)
		for i, m := range allMigrations(t) {
			assert.WithinDuration(t, time.Now(), ran[i].AppliedAt, time.Minute)
			ran[i].AppliedAt = time.Time{}
			assert.Equal(t, schema.Migration{Version: i + 1, Name: m.Name}, ran[i], h.name)
		}
		require.NoError(t, checkSchema(t.Context(), h.with(t, names).db), h.name)

		ran, err = schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.NoError(t, err)
		assert.Empty(t, ran, h.name)

		warnings, err := schemaProblems(t.Context(), h.with(t, names).db)
		require.NoError(t, err)
		assert.Empty(t, warnings, h.name)
	})
}

func TestMigrateByManyAtOnce(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	handles := openHandles(t, url)
	for _, names := range []sqltext.Tables{{}, {Schema: "tenant"}} {
		var group errgroup.Group
		ran := make([][]schema.Migration, 8)
		for i := range ran {
			group.Go(func() (err error) {
				ran[i], err = schema.Migrate(t.Context(), handles[i%len(handles)].with(t, names).db, schema.MigrateConfig{})
				return err
			})
		}
		require.NoError(t, group.Wait())
		total := 0
		for _, r := range ran {
			total += len(r)
		}
		assert.Equal(t, len(allMigrations(t)), total, "each migration ran once")
		require.NoError(t, checkSchema(t.Context(), handles[0].with(t, names).db))
	}
}

func TestMigrateLeavesNothingBehindWhenItFails(t *testing.T) {
	t.Parallel()
	overEach(t, newDatabase(t), func(t *testing.T, h handle) {
		names := sqltext.Tables{Schema: strings.ReplaceAll(h.name, "-", "_")}
		h.exec(t, "create schema "+names.Schema)
		h.exec(t, "create table "+names.Schema+".outbox_dead ()") // clashes with an index, late in the migration

		_, err := schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.Error(t, err, h.name)
		assert.Equal(t, "42P07", text.SQLState(err))
		assert.Equal(t, 1, h.count(t, "select count(*) from pg_class c join pg_namespace n on n.oid = relnamespace "+
			"where nspname = $1", names.Schema), h.name)

		h.exec(t, "drop table "+names.Schema+".outbox_dead")
		require.NoError(t, makeTables(t.Context(), h.with(t, names).db))
	})
}

func TestMigrateRefusesAnotherHistory(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `update outbox_migrations set checksum = 'x'`)
	_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
	require.ErrorIs(t, err, schema.ErrSchemaChanged)
	h.exec(t, newerMigration)
	_, err = schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
	require.ErrorIs(t, err, schema.ErrSchemaChanged, "a newer version elsewhere does not excuse this")
}

const newerMigration = `insert into outbox_migrations (version, name, checksum) values (9999, 'future', 'x')`

// TestMigrateOfAnOlderProcess: an older process restarts during a rolling deployment.
func TestMigrateOfAnOlderProcess(t *testing.T) {
	t.Parallel()
	overEach(t, newMigratedDatabase(t), func(t *testing.T, h handle) {
		h.exec(t, newerMigration+" on conflict do nothing")
		ran, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
		require.NoError(t, err)
		assert.Empty(t, ran)
		require.NoError(t, checkSchema(t.Context(), h.db))
		found, err := schemaProblems(t.Context(), h.db)
		require.NoError(t, err)
		require.Len(t, found, 1)
		assert.True(t, found[0].Warning)
	})
}

// TestMigrateWithRightsOnTheSchemaAlone uses a role that may not create schemas. The files for other tools need no more
// without their first line.
func TestMigrateWithRightsOnTheSchemaAlone(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := newPgxHandle(t, url)
	role := newRole(t, admin)
	for i, open := range openHandles(t, url) {
		name := fmt.Sprintf("Shop-%d", i)
		printed := name + "-printed"
		for _, s := range []string{name, printed} {
			admin.exec(t, fmt.Sprintf(`create schema "%s"`, s))
			admin.exec(t, fmt.Sprintf(`grant usage, create on schema "%s" to %s`, s, role))
		}
		var h handle
		if open.sql == nil {
			h = newPgxHandle(t, url+"&role="+role)
		} else {
			h = newSQLHandle(t, map[string]string{"sql-pgx": "pgx", "sql-pq": "postgres"}[open.name], url+"&role="+role)
		}
		for range 2 {
			require.NoError(t, makeTables(t.Context(), h.with(t, sqltext.Tables{Schema: name}).db), h.name)
		}
		err := makeTables(t.Context(), h.with(t, sqltext.Tables{Schema: "missing"}).db)
		require.Equal(t, "42501", text.SQLState(err), "%v", err)
		if h.pool == nil {
			continue
		}
		files, err := schema.Files(schema.FilesConfig{Format: schema.Plain, Tables: outbox.Tables{Schema: printed}})
		require.NoError(t, err)
		first, rest, _ := strings.Cut(files[0].Content, "\n")
		_, err = h.pool.Exec(t.Context(), first)
		require.Equal(t, "42501", text.SQLState(err), "%s: %v", first, err)
		files[0].Content = rest
		for _, f := range files {
			_, err := h.pool.Exec(t.Context(), f.Content)
			require.NoError(t, err, f.Name)
		}
		require.NoError(t, checkSchema(t.Context(), h.with(t, sqltext.Tables{Schema: printed}).db))
	}
}

// usable writes and reads a message and an inbox row under the given names.
func usable(t *testing.T, h handle, names sqltext.Tables) {
	t.Helper()
	pub, err := outbox.NewPublisher(h.with(t, names).db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders", newMessage("hello")))
	assert.Equal(t, "orders", value[string](t, h, names.Render("select topic from {outbox}")))
	h.exec(t, names.Render(sqltext.ClaimInbox), "consumer", "id", nil)
	assert.Zero(t, value[int](t, h, names.Render("select attempts from {inbox}")))
}

func TestEveryNameCanBeChosen(t *testing.T) {
	t.Parallel()
	overEach(t, newDatabase(t), func(t *testing.T, h handle) {
		names := otherNames
		names.Schema += h.name
		require.NoError(t, makeTables(t.Context(), h.with(t, names).db))
		require.NoError(t, checkSchema(t.Context(), h.with(t, names).db))
		usable(t, h, names)
	})
}

func TestTwoTableSetsInOneSchema(t *testing.T) {
	h := onPgx(t)
	second := sqltext.Tables{Outbox: "audit"}
	require.NoError(t, makeTables(t.Context(), h.with(t, second).db))
	require.NoError(t, checkSchema(t.Context(), h.with(t, second).db))
	require.NoError(t, checkSchema(t.Context(), h.db))
	usable(t, h, second)
	assert.Zero(t, h.count(t, "select count(*) from outbox"))
}

// TestSchemaInSearchPath has the tables in a schema that only the search path names, even behind another one, so that
// Postgres prints their names both with the schema and without.
func TestSchemaInSearchPath(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := newPgxHandle(t, url)
	admin.exec(t, "create schema app")
	h := newPgxHandle(t, url+"&search_path=app,public")
	require.NoError(t, makeTables(t.Context(), h.db))
	require.NoError(t, checkSchema(t.Context(), h.db))
	require.NoError(t, checkSchema(t.Context(), admin.with(t, sqltext.Tables{Schema: "app"}).db))
	require.Error(t, checkSchema(t.Context(), admin.db))
}

func TestHostileNamesAreRefused(t *testing.T) {
	t.Parallel()
	pool := newPgxHandle(t, postgresServer(t).URL()).pool
	long := strings.Repeat("x", 41)
	for _, bad := range []string{
		`x"; drop table users; --`, `x'; drop table users; --`, `a;b`, `a"b`, `a'b`, "a\x00b", "a b", "a.b", ".",
		"..", `"`, `""`,
		"a\nb", " ", "-x", "1x", long, "tаble" /* Cyrillic a */, "{outbox}", "a\\b", "$1",
	} {
		for field, names := range map[string]sqltext.Tables{
			"Schema": {Schema: bad}, "Outbox": {Outbox: bad}, "Lanes": {Lanes: bad},
			"Forwarders": {Forwarders: bad}, "Migrations": {Migrations: bad}, "Inbox": {Inbox: bad},
			"Queue": {Queue: bad},
		} {
			_, err := outbox.FromPgx(pool, outbox.DBConfig{Tables: outbox.Tables(names)}, nil)
			require.ErrorIs(t, err, sqltext.ErrBadName, "%s %q", field, bad)
			require.ErrorContains(t, err, field)
			_, err = schema.Files(schema.FilesConfig{Format: schema.Plain, Tables: outbox.Tables(names)})
			require.ErrorIs(t, err, sqltext.ErrBadName)
		}
	}
	_, err := outbox.FromPgx(pool, outbox.DBConfig{Tables: outbox.Tables{Inbox: "outbox"}}, nil)
	require.ErrorIs(t, err, sqltext.ErrBadName)
	for field, cfg := range map[string]schema.FilesConfig{
		"Format": {Format: "flyway"}, "StartAt": {Format: schema.Goose, StartAt: -1},
		"From": {Format: schema.Goose, From: -1},
	} {
		_, err := schema.Files(cfg)
		require.ErrorContains(t, err, "FilesConfig."+field)
	}
}

// TestOlderMigrationKeepsTheOutbox: the outbox of a database without the latest migrations still writes, forwards,
// counts and shows its page.
func TestOlderMigrationKeepsTheOutbox(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "DROP TABLE inbox_queue, outbox_idempotency CASCADE")
	h.exec(t, "DELETE FROM outbox_migrations WHERE version > 1")
	require.ErrorIs(t, checkSchema(t.Context(), h.db), schema.ErrSchemaChanged)
	require.NoError(t, checkOnlyOutbox(t.Context(), h.db))

	h.publish(t, "orders", "k", "one")
	broker := newFakeBroker()
	fwd, err := forwarder.New(h.db, broker, quickConfig(), nil)
	require.NoError(t, err)
	require.NoError(t, fwd.Drain(t.Context()))
	assert.Equal(t, 1, h.count(t, "SELECT count(*)::int FROM outbox WHERE published_at IS NOT NULL"))

	stats, err := newAdmin(t, h).Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	assert.NotEmpty(t, stats.Topics)
	assert.Empty(t, stats.Queue)
	assert.Equal(t, http.StatusOK, newSite(t, h, ui.Access{}).get("").status)
	assert.Contains(t, ctl{t: t, url: h.url}.run("doctor").out, "was not applied")

	h.exec(t, "ALTER TABLE inbox ADD more text NOT NULL")
	require.NoError(t, checkOnlyOutbox(t.Context(), h.db))
	h.exec(t, "ALTER TABLE outbox_topics ADD more text NOT NULL")
	require.ErrorContains(t, checkOnlyOutbox(t.Context(), h.db), "this library does not know it")
	h.exec(t, "ALTER TABLE outbox_topics DROP more")
	h.exec(t, "DROP INDEX outbox_ready")
	require.ErrorIs(t, checkOnlyOutbox(t.Context(), h.db), schema.ErrSchemaChanged)
}

func versions(list []schema.Migration) (got []int) {
	for _, m := range list {
		got = append(got, m.Version)
	}
	return got
}

// migrates calls Migrate and checks which versions ran.
func migrates(t *testing.T, h handle, names sqltext.Tables, cfg schema.MigrateConfig, want ...int) {
	t.Helper()
	ran, err := schema.Migrate(t.Context(), h.with(t, names).db, cfg)
	require.NoError(t, err, h.name)
	assert.Equal(t, want, versions(ran), h.name)
}

func TestMigrateToAVersion(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	for _, to := range []int{-1, 3} {
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{To: to})
		require.ErrorContains(t, err, "MigrateConfig.To")
	}
	list, err := schema.Status(t.Context(), h.db)
	require.NoError(t, err)
	assert.Equal(t, []schema.Migration{
		{Version: 1, Name: "outbox_and_inbox"}, {Version: 2, Name: "queue_and_idempotency"},
	}, list)

	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 1}, 1)
	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 1})
	h.exec(t, newerMigration)
	list, err = schema.Status(t.Context(), h.db)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2, 9999}, versions(list))
	for i, applied := range []bool{true, false, true} {
		assert.Equal(t, applied, !list[i].AppliedAt.IsZero(), "%+v", list[i])
	}
}

// TestAMigrationMayNotBeMissing before one that was applied.
func TestAMigrationMayNotBeMissing(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	require.NoError(t, makeTables(t.Context(), h.db))
	h.exec(t, `delete from outbox_migrations where version = 1`)
	_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
	require.ErrorIs(t, err, schema.ErrSchemaChanged)
	require.ErrorContains(t, err, "version 1 (outbox_and_inbox) was not")
}

// TestMigrateWithOneConnection: Migrate needs only one connection.
func TestMigrateWithOneConnection(t *testing.T) {
	t.Parallel()
	h := newSQLHandle(t, "pgx", newDatabase(t))
	h.sql.SetMaxOpenConns(1)
	migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{}, 1, 2)
}

// TestMigrateInPartitions: the outbox is created in partitions, passes Check without findings, and works like any
// other.
func TestMigrateInPartitions(t *testing.T) {
	t.Parallel()
	cfg := schema.MigrateConfig{PartitionSize: 10}
	overEach(t, newDatabase(t), func(t *testing.T, h handle) {
		for _, names := range []sqltext.Tables{{Schema: "in-" + h.name}, {Schema: "in-" + h.name, Outbox: "Out-box"}} {
			h := h.with(t, names)
			_, err := schema.Migrate(t.Context(), h.db, cfg)
			require.NoError(t, err, h.name)
			ran, err := schema.Migrate(t.Context(), h.db, cfg)
			require.NoError(t, err, h.name)
			assert.Empty(t, ran)
			ran, err = schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
			require.NoError(t, err, "an older version leaves partitions alone")
			assert.Empty(t, ran)
			found, err := schemaProblems(t.Context(), h.db)
			require.NoError(t, err)
			assert.Empty(t, found)
			usable(t, h, names)
		}
	})
	h := newPgxHandle(t, newDatabase(t))
	_, err := schema.Migrate(t.Context(), h.db, cfg)
	require.NoError(t, err)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload) SELECT i, 'events', '' FROM generate_series(1, 100) i")
	assert.Equal(t, []string{
		"outbox_default 11", "outbox_p0 9", "outbox_p1 10", "outbox_p2 10", "outbox_p3 10", "outbox_p4 10", "outbox_p5 10",
		"outbox_p6 10", "outbox_p7 10", "outbox_p8 10",
	},
		column[string](t, h, "SELECT tableoid::regclass || ' ' || count(*) FROM outbox GROUP BY tableoid ORDER BY 1"))
	for _, size := range []int64{-1, 1 << 60} {
		_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: size})
		require.ErrorContains(t, err, "MigrateConfig.PartitionSize")
		_, err = schema.Files(schema.FilesConfig{Format: schema.Plain, PartitionSize: size})
		require.ErrorContains(t, err, "FilesConfig.PartitionSize")
	}
	plain := newPgxHandle(t, newDatabase(t))
	_, err = schema.Migrate(t.Context(), plain.db, schema.MigrateConfig{})
	require.NoError(t, err)
	_, err = schema.Migrate(t.Context(), plain.db, cfg)
	require.ErrorContains(t, err, "the outbox is one table")
}

// TestFilesInPartitions: the files create the same tables as Migrate.
func TestFilesInPartitions(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	files, err := schema.Files(schema.FilesConfig{Format: schema.Plain, PartitionSize: 10})
	require.NoError(t, err)
	for _, f := range files {
		_, err := h.pool.Exec(t.Context(), f.Content)
		require.NoError(t, err, f.Name)
	}
	found, err := schemaProblems(t.Context(), h.db)
	require.NoError(t, err)
	assert.Empty(t, found)
	assert.Equal(t, 10, h.count(t, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox'::regclass"))
}

// TestCheckOfPartitions: partitions are checked one by one, and the cures work.
func TestCheckOfPartitions(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{PartitionSize: 10})
	require.NoError(t, err)
	h.exec(t, "ALTER TABLE outbox_p1 RESET (autovacuum_vacuum_scale_factor)")
	h.exec(t, "ALTER TABLE outbox_default SET (autovacuum_enabled = off)")
	h.exec(t, "DROP INDEX outbox_held")
	found, err := schemaProblems(t.Context(), h.db)
	require.NoError(t, err)
	require.Len(t, found, 3)
	var objects []string
	for _, p := range found {
		objects = append(objects, p.Object)
		h.exec(t, p.Cure)
	}
	assert.ElementsMatch(t, []string{
		`table public.outbox_p1`, `table public.outbox_default`, `index "outbox_held"`,
	}, objects)
	found, err = schemaProblems(t.Context(), h.db)
	require.NoError(t, err)
	assert.Empty(t, found)
}
