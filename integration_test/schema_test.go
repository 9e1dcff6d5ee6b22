package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"
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

// otherNames are names that only work if every statement quotes and uses them.
var otherNames = sqltext.Tables{
	Schema: "Shop-1", Outbox: "select", Lanes: "My-Lanes", Forwarders: "from", Migrations: "Table$1", Inbox: "_INBOX", Queue: "QUEUE",
}

func allMigrations(t testing.TB) []migrations.Migration {
	t.Helper()
	all, err := migrations.All()
	require.NoError(t, err)
	return all
}

func TestMigrateIsIdempotent(t *testing.T) {
	t.Parallel()
	for _, h := range openHandles(t, newDatabase(t)) {
		names := sqltext.Tables{Schema: strings.ReplaceAll(h.name, "-", "_")}
		ran, err := schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.NoError(t, err)
		require.Len(t, ran, len(allMigrations(t)), h.name)
		for i, m := range allMigrations(t) {
			assert.WithinDuration(t, time.Now(), ran[i].AppliedAt, time.Minute)
			ran[i].AppliedAt = time.Time{}
			assert.Equal(t, schema.Migration{Version: i + 1, Name: m.Name}, ran[i], h.name)
		}
		require.NoError(t, schema.Check(t.Context(), h.with(t, names).db), h.name)

		ran, err = schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.NoError(t, err)
		assert.Empty(t, ran, h.name)

		warnings, err := schema.Inspect(t.Context(), h.with(t, names).db)
		require.NoError(t, err)
		assert.Empty(t, warnings, h.name)
	}
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
		require.NoError(t, schema.Check(t.Context(), handles[0].with(t, names).db))
	}
}

func TestMigrateLeavesNothingBehindWhenItFails(t *testing.T) {
	t.Parallel()
	for _, h := range openHandles(t, newDatabase(t)) {
		names := sqltext.Tables{Schema: strings.ReplaceAll(h.name, "-", "_")}
		h.exec(t, "create schema "+names.Schema)
		h.exec(t, "create table "+names.Schema+".outbox_dead ()") // clashes with an index, late in the migration

		_, err := schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.Error(t, err, h.name)
		assert.Equal(t, "42P07", text.SQLState(err))
		assert.Equal(t, 1, h.count(t, "select count(*) from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = $1", names.Schema), h.name)

		h.exec(t, "drop table "+names.Schema+".outbox_dead")
		require.NoError(t, makeTables(t.Context(), h.with(t, names).db))
	}
}

func TestMigrateRefusesAnotherHistory(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, `update outbox_migrations set checksum = 'x'`)
	_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
	require.ErrorIs(t, err, schema.ErrSchemaChanged)
	h.exec(t, newerMigration)
	_, err = schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
	require.ErrorIs(t, err, schema.ErrSchemaChanged, "that a newer version came by does not excuse it")
}

const newerMigration = `insert into outbox_migrations (version, name, checksum) values (9999, 'future', 'x')`

// TestMigrateOfAnOlderProcess restarts one during a rolling deployment.
func TestMigrateOfAnOlderProcess(t *testing.T) {
	t.Parallel()
	for _, h := range openHandles(t, newMigratedDatabase(t)) {
		h.exec(t, newerMigration+" on conflict do nothing")
		ran, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
		require.NoError(t, err)
		assert.Empty(t, ran)
		require.NoError(t, schema.Check(t.Context(), h.db))
		found, err := schema.Inspect(t.Context(), h.db)
		require.NoError(t, err)
		require.Len(t, found, 1)
		assert.True(t, found[0].Warning)
	}
}

// TestMigrateWithRightsOnTheSchemaAlone is by a role that may not create schemas.
func TestMigrateWithRightsOnTheSchemaAlone(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := newPgxHandle(t, url)
	for i, open := range openHandles(t, url) {
		name := fmt.Sprintf("Shop-%d", i)
		role := fmt.Sprintf("limited_%d_%d", os.Getpid(), i)
		admin.exec(t, `create role `+role)
		t.Cleanup(func() {
			_, err := (*core.DB)(admin.db).Exec(context.Background(), `drop owned by `+role)
			assert.NoError(t, err)
			_, err = (*core.DB)(admin.db).Exec(context.Background(), `drop role `+role)
			assert.NoError(t, err)
		})
		admin.exec(t, fmt.Sprintf(`create schema "%s"`, name))
		admin.exec(t, fmt.Sprintf(`grant usage, create on schema "%s" to %s`, name, role))
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
	for _, h := range openHandles(t, newDatabase(t)) {
		names := otherNames
		names.Schema += h.name
		require.NoError(t, makeTables(t.Context(), h.with(t, names).db))
		require.NoError(t, schema.Check(t.Context(), h.with(t, names).db))
		usable(t, h, names)
	}
}

func TestTwoTableSetsInOneSchema(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	second := sqltext.Tables{Outbox: "audit"}
	require.NoError(t, makeTables(t.Context(), h.with(t, second).db))
	require.NoError(t, schema.Check(t.Context(), h.with(t, second).db))
	require.NoError(t, schema.Check(t.Context(), h.db))
	usable(t, h, second)
	assert.Zero(t, h.count(t, "select count(*) from outbox"))
}

// TestSchemaInSearchPath has the tables in a schema that only the search path names, also one that is
// not first, so that Postgres prints their names with the schema and without.
func TestSchemaInSearchPath(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := newPgxHandle(t, url)
	admin.exec(t, "create schema app")
	h := newPgxHandle(t, url+"&search_path=app,public")
	require.NoError(t, makeTables(t.Context(), h.db))
	require.NoError(t, schema.Check(t.Context(), h.db))
	require.NoError(t, schema.Check(t.Context(), admin.with(t, sqltext.Tables{Schema: "app"}).db))
	require.Error(t, schema.Check(t.Context(), admin.db))
}

// migrationTools run the files of a format as their users would.
var migrationTools = map[schema.Format]func(t *testing.T, url string, files fstest.MapFS){
	schema.Goose: func(t *testing.T, url string, files fstest.MapFS) {
		db, err := sql.Open("pgx", url)
		require.NoError(t, err)
		defer db.Close()
		provider, err := goose.NewProvider(goose.DialectPostgres, db, files)
		require.NoError(t, err)
		_, err = provider.Up(t.Context())
		require.NoError(t, err)
	},
	schema.GolangMigrate: func(t *testing.T, url string, files fstest.MapFS) {
		db, err := sql.Open("pgx", url)
		require.NoError(t, err)
		source, err := iofs.New(files, ".")
		require.NoError(t, err)
		driver, err := migratepgx.WithInstance(db, &migratepgx.Config{})
		require.NoError(t, err)
		m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
		require.NoError(t, err)
		require.NoError(t, m.Up())
		sourceErr, dbErr := m.Close()
		require.NoError(t, errors.Join(sourceErr, dbErr))
	},
	schema.Plain: func(t *testing.T, url string, files fstest.MapFS) {
		h := newPgxHandle(t, url)
		names, err := fs.Glob(files, "*")
		require.NoError(t, err)
		for _, name := range names {
			// psql sends one statement after another.
			for _, statement := range strings.Split(string(files[name].Data), ";\n") {
				_, err := h.pool.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
				require.NoError(t, err, name)
			}
		}
	},
}

// filesOf returns what Files does as a folder, and the names in it.
func filesOf(t *testing.T, cfg schema.FilesConfig) (folder fstest.MapFS, names []string) {
	t.Helper()
	list, err := schema.Files(cfg)
	require.NoError(t, err)
	folder = fstest.MapFS{}
	for _, f := range list {
		folder[f.Name] = &fstest.MapFile{Data: []byte(f.Content)}
		names = append(names, f.Name)
	}
	return folder, names
}

func TestFilesForOtherMigrationTools(t *testing.T) {
	t.Parallel()
	for _, names := range []sqltext.Tables{{}, otherNames} {
		for format, run := range migrationTools {
			t.Run(string(format)+" "+names.OutboxName(), func(t *testing.T) {
				url := newDatabase(t)
				files, _ := filesOf(t, schema.FilesConfig{Format: format, Tables: outbox.Tables(names)})
				run(t, url, files)
				for _, h := range openHandles(t, url) {
					require.NoError(t, schema.Check(t.Context(), h.with(t, names).db), h.name)
				}
				h := newPgxHandle(t, url)
				migrates(t, h, names, schema.MigrateConfig{})
				usable(t, h, names)
			})
		}
	}
}

// TestFilesAmongTheUsersOwn puts them after files that the folder has already, whose numbers would be taken twice.
func TestFilesAmongTheUsersOwn(t *testing.T) {
	t.Parallel()
	for format, suffix := range map[schema.Format]string{schema.Goose: ".sql", schema.GolangMigrate: ".up.sql"} {
		url := newDatabase(t)
		files, names := filesOf(t, schema.FilesConfig{Format: format, StartAt: 3})
		for i, m := range allMigrations(t) {
			assert.Equal(t, fmt.Sprintf("%04d_watermill_%s%s", 3+i, m.Name, suffix), names[i])
		}
		files["0001_users"+suffix] = &fstest.MapFile{Data: []byte("-- +goose Up\ncreate table users ();\n")}
		files["0002_more"+suffix] = &fstest.MapFile{Data: []byte("-- +goose Up\nalter table users add name text;\n")}
		migrationTools[format](t, url, files)
		require.NoError(t, schema.Check(t.Context(), newPgxHandle(t, url).db))
	}
}

// TestFilesAreFiles writes what Files returns, as a user would.
func TestFilesAreFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	list, err := schema.Files(schema.FilesConfig{Format: schema.Plain})
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, f := range list {
		require.Equal(t, filepath.Base(f.Name), f.Name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Content), 0o600))
	}
}

func TestHostileNamesAreRefused(t *testing.T) {
	t.Parallel()
	pool := newPgxHandle(t, postgresServer(t).URL()).pool
	long := strings.Repeat("x", 41)
	for _, bad := range []string{
		`x"; drop table users; --`, `x'; drop table users; --`, `a;b`, `a"b`, `a'b`, "a\x00b", "a b", "a.b", ".", "..", `"`, `""`,
		"a\nb", " ", "-x", "1x", long, "tаble" /* Cyrillic a */, "{outbox}", "a\\b", "$1",
	} {
		for field, names := range map[string]sqltext.Tables{
			"Schema": {Schema: bad}, "Outbox": {Outbox: bad}, "Lanes": {Lanes: bad},
			"Forwarders": {Forwarders: bad}, "Migrations": {Migrations: bad}, "Inbox": {Inbox: bad},
			"Queue": {Queue: bad},
		} {
			_, err := outbox.FromPgx(pool, outbox.DBConfig{Tables: outbox.Tables(names)}, nil)
			require.ErrorIs(t, err, outbox.ErrBadName, "%s %q", field, bad)
			require.ErrorContains(t, err, field)
			_, err = schema.Files(schema.FilesConfig{Format: schema.Plain, Tables: outbox.Tables(names)})
			require.ErrorIs(t, err, outbox.ErrBadName)
		}
	}
	_, err := outbox.FromPgx(pool, outbox.DBConfig{Tables: outbox.Tables{Inbox: "outbox"}}, nil)
	require.ErrorIs(t, err, outbox.ErrBadName)
	for field, cfg := range map[string]schema.FilesConfig{
		"Format": {Format: "flyway"}, "StartAt": {Format: schema.Goose, StartAt: -1}, "From": {Format: schema.Goose, From: -1},
	} {
		_, err := schema.Files(cfg)
		require.ErrorContains(t, err, "FilesConfig."+field)
	}
}

func TestCheckNamesTheDamage(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := newPgxHandle(t, url)
	more := len(allMigrations(t)) - 1
	for name, damage := range map[string]struct {
		sql         string
		object      string // of the first problem
		found, cure string // parts of it
		others      int    // problems besides it
		warning     bool
	}{
		"index missing":        {sql: `drop index outbox_ready`, object: `index "outbox_ready"`, found: "is missing", cure: `CREATE INDEX CONCURRENTLY "outbox_ready" ON "outbox" (lane, id)`},
		"index predicate":      {sql: `drop index outbox_ready; create index outbox_ready on outbox (lane, id) where published_at is null and dead_at is null`, object: `index "outbox_ready"`, found: "WHERE ((published_at IS NULL) AND (dead_at IS NULL))", cure: "drop it"},
		"index opposite":       {sql: `drop index outbox_waiting; create index outbox_waiting on outbox (lane, due_at, id) where published_at is null and dead_at is null and due_at is null`, object: `index "outbox_waiting"`, found: "due_at IS NULL", cure: "due_at IS NOT NULL"},
		"index columns":        {sql: `drop index outbox_waiting; create index outbox_waiting on outbox (lane, id, due_at) where published_at is null and dead_at is null and due_at is not null`, object: `index "outbox_waiting"`, found: "lane, id, due_at", cure: "drop it"},
		"index direction":      {sql: `drop index outbox_dead; create index outbox_dead on outbox (lane, id desc) where dead_at is not null`, object: `index "outbox_dead"`, found: "is btree", cure: "drop it"},
		"index method":         {sql: `drop index inbox_processed; create index inbox_processed on inbox using hash (processed_at)`, object: `index "inbox_processed"`, found: "is hash", cure: "USING brin"},
		"index invalid":        {sql: `update pg_index set indisvalid = false where indexrelid = 'outbox_dead'::regclass`, object: `index "outbox_dead"`, found: "invalid", cure: "drop it"},
		"column missing":       {sql: `alter table outbox drop column last_error`, object: `column "outbox".last_error`, found: "is missing", cure: "CREATE TABLE"},
		"column type":          {sql: `alter table outbox alter payload type text using 'x', alter attempts type bigint`, object: `column "outbox".payload`, found: "text, not bytea", cure: "TYPE bytea", others: 1},
		"column not null":      {sql: `alter table outbox alter due_at set not null`, object: `column "outbox".due_at`, found: "refuses NULL", cure: "DROP NOT NULL"},
		"column nullable":      {sql: `alter table inbox alter attempts drop not null`, object: `column "inbox".attempts`, found: "may be NULL", cure: "SET NOT NULL"},
		"column of the user's": {sql: `alter table outbox add tenant int not null`, object: `column "outbox"."tenant"`, found: "must be given", cure: "default"},
		"default missing":      {sql: `alter table outbox alter created_at drop default`, object: `column "outbox".created_at`, found: "default", cure: "SET DEFAULT clock_timestamp()"},
		"id without xid":       {sql: `alter table outbox alter id set default nextval('outbox_id_seq')`, object: `column "outbox".id`, found: "out of order", cure: "pg_current_xact_id"},
		"id after xid":         {sql: `alter table outbox alter id set default (case when nextval('outbox_id_seq') is not null then pg_current_xact_id()::text::bigint end)`, object: `column "outbox".id`, found: "out of order", cure: "pg_current_xact_id"},
		"id of other sequence": {sql: `create sequence other; alter table outbox alter id set default (case when pg_current_xact_id() is not null then nextval('other') end)`, object: `column "outbox".id`, found: "other", cure: "outbox_id_seq"},
		"id is identity":       {sql: `alter table outbox alter id drop default, alter id add generated by default as identity`, object: `column "outbox".id`, found: "out of order", cure: "pg_current_xact_id"},
		"lane by other hash":   {sql: `drop index outbox_ready, outbox_waiting, outbox_dead, outbox_held; alter table outbox drop lane, add lane smallint not null generated always as ((hashtext(uuid) & 63)::smallint) stored`, object: `column "outbox".lane`, found: "hashtext(uuid)", cure: "CREATE TABLE", others: 4},
		"lane not generated":   {sql: `alter table outbox alter lane drop expression`, object: `column "outbox".lane`, found: "not generated", cure: "CREATE TABLE"},
		"sequence cache":       {sql: `alter sequence outbox_id_seq cache 10`, object: `sequence "outbox_id_seq"`, found: "cache of 10", cure: "CACHE 1"},
		"sequence downwards":   {sql: `alter sequence outbox_id_seq increment -1 maxvalue 100 minvalue -100`, object: `sequence "outbox_id_seq"`, found: "by -1", cure: "INCREMENT 1"},
		"sequence cycles":      {sql: `alter sequence outbox_id_seq cycle`, object: `sequence "outbox_id_seq"`, found: "cycles", cure: "NO CYCLE"},
		"sequence of integer":  {sql: `alter sequence outbox_id_seq as integer`, object: `sequence "outbox_id_seq"`, found: "integer", cure: "AS bigint"},
		"sequence missing":     {sql: `alter table outbox alter id drop default; drop sequence outbox_id_seq`, object: `sequence "outbox_id_seq"`, found: "is missing", cure: "CREATE SEQUENCE", others: 1},
		"primary key missing":  {sql: `alter table inbox drop constraint inbox_pkey`, object: `table "inbox"`, found: "primary key", cure: "ADD PRIMARY KEY (consumer, message_id)"},
		"primary key deferred": {sql: `alter table inbox drop constraint inbox_pkey, add primary key (consumer, message_id) deferrable`, object: `table "inbox"`, found: "immediate primary key", cure: "ADD PRIMARY KEY"},
		"queue's sequence":     {sql: `alter sequence inbox_queue_id_seq cache 10`, object: `sequence "inbox_queue_id_seq"`, found: "cache of 10", cure: "CACHE 1"},
		"queue's id":           {sql: `alter table inbox_queue alter id set default nextval('inbox_queue_id_seq')`, object: `column "inbox_queue".id`, found: "late", cure: "pg_current_xact_id"},
		"queue's index":        {sql: `drop index inbox_queue_waiting`, object: `index "inbox_queue_waiting"`, found: "is missing", cure: "INDEX CONCURRENTLY"},
		"queue missing":        {sql: `drop table inbox_queue`, object: `sequence "inbox_queue_id_seq"`, found: "is missing", cure: "CREATE SEQUENCE", others: 1},
		"primary key other":    {sql: `alter table outbox_lanes drop constraint outbox_lanes_pkey, add primary key (lane, scope)`, object: `table "outbox_lanes"`, found: "primary key", cure: "(scope, lane)"},
		"table missing":        {sql: `drop table outbox_lanes`, object: `table "outbox_lanes"`, found: "is missing", cure: `CREATE TABLE "outbox_lanes"`},
		"table is a view":      {sql: `drop table inbox; create view inbox as select 1 as consumer`, object: `table "inbox"`, found: "not a table", cure: "Tables"},
		"life logged":          {sql: `alter table outbox_life set logged`, object: `table "outbox_life"`, found: "a crash of the server", cure: "SET UNLOGGED"},
		"life missing":         {sql: `drop table outbox_life`, object: `table "outbox_life"`, found: "is missing", cure: `CREATE UNLOGGED TABLE "outbox_life"`},
		"table unlogged":       {sql: `alter table outbox set unlogged`, object: `table "outbox"`, found: "unlogged", cure: "SET LOGGED"},
		"migrations missing":   {sql: `drop table outbox_migrations`, object: `migration`, found: "0001_outbox_and_inbox was not applied", cure: "schema.Migrate", others: 1 + more},
		"migrations emptied":   {sql: `delete from outbox_migrations`, object: `migration`, found: "not applied", cure: "schema.Migrate", others: more},
		"migrations changed":   {sql: `update outbox_migrations set checksum = 'x'`, object: `migration`, found: "other contents", cure: "find out", others: more},
		"nothing there":        {sql: dropTables, object: `table "outbox"`, found: "do not exist", cure: "schema.Migrate"},
		"autovacuum off":       {sql: `alter table outbox set (autovacuum_enabled = off)`, object: `table "outbox"`, found: "autovacuum", cure: "RESET", warning: true},
		"autovacuum untuned":   {sql: `alter table inbox reset (autovacuum_vacuum_scale_factor)`, object: `table "inbox"`, found: "autovacuum", cure: "SET (autovacuum_vacuum_scale_factor = 0", warning: true},
	} {
		t.Run(name, func(t *testing.T) {
			own := "damage_" + strings.NewReplacer(" ", "_", "'", "").Replace(name)
			admin.exec(t, "create schema "+own)
			h := newPgxHandle(t, url+"&search_path="+own)
			require.NoError(t, makeTables(t.Context(), h.db))
			conn, err := h.pool.Acquire(t.Context())
			require.NoError(t, err)
			_, err = conn.Conn().PgConn().Exec(t.Context(), damage.sql).ReadAll()
			conn.Release()
			require.NoError(t, err)

			found, err := schema.Inspect(t.Context(), h.db)
			require.NoError(t, err)
			require.NotEmpty(t, found)
			assert.Equal(t, damage.object, found[0].Object)
			assert.Contains(t, found[0].Found, damage.found)
			assert.Contains(t, found[0].Cure, damage.cure)
			assert.Len(t, found, 1+damage.others, "%v", found)
			assert.Equal(t, damage.warning, found[0].Warning)

			err = schema.Check(t.Context(), h.db)
			if damage.warning {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, schema.ErrSchemaChanged)
			var list *schema.CheckError
			require.ErrorAs(t, err, &list)
			assert.Equal(t, found, list.Problems)
			require.ErrorContains(t, err, damage.cure)
		})
	}
}

// TestCheckTakesEquivalents leaves alone what differs only in name or in form.
func TestCheckTakesEquivalents(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, `alter index outbox_ready rename to other_ready`)
	h.exec(t, `drop index outbox_dead`)
	h.exec(t, `create index concurrently other_dead on outbox using btree ("lane", "id") include (uuid) where ((dead_at) is not null)`)
	h.exec(t, `alter table outbox add tenant text, add region text not null default 'eu', add n int generated always as identity`)
	h.exec(t, `alter table outbox alter topic set default 'orders'`)
	h.exec(t, `alter sequence outbox_id_seq increment 5`)
	found, err := schema.Inspect(t.Context(), h.db)
	require.NoError(t, err)
	assert.Empty(t, found)
}

// TestCuresCure applies the statement that Check names.
func TestCuresCure(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	for _, damage := range []string{
		`drop index outbox_ready`, `drop table outbox_lanes`, `alter table inbox alter attempts drop not null`,
		`alter table outbox alter id set default nextval('outbox_id_seq')`, `alter sequence outbox_id_seq cache 10`,
		`alter table inbox drop constraint inbox_pkey`, `alter table outbox alter key drop default`,
		`alter table inbox set (autovacuum_enabled = off)`, `alter table outbox set unlogged`,
		`alter table outbox reset (autovacuum_vacuum_scale_factor)`,
	} {
		h.exec(t, damage)
		found, err := schema.Inspect(t.Context(), h.db)
		require.NoError(t, err)
		require.Len(t, found, 1, damage)
		cure := found[0].Cure
		if at := strings.Index(cure, ": "); at >= 0 {
			cure = cure[at+2:]
		}
		h.exec(t, cure)
		found, err = schema.Inspect(t.Context(), h.db)
		require.NoError(t, err)
		assert.Empty(t, found, damage)
	}
}

func TestCheckOfADatabaseThatWasNeverMigrated(t *testing.T) {
	t.Parallel()
	for _, h := range openHandles(t, newDatabase(t)) {
		err := schema.Check(t.Context(), h.with(t, sqltext.Tables{Schema: "nowhere"}).db)
		require.ErrorIs(t, err, schema.ErrSchemaChanged, h.name)
		require.ErrorContains(t, err, "run schema.Migrate")
		require.NotContains(t, err.Error(), "CREATE", "Migrate is the cure for all of it")
	}
}

func TestCheckUsesFewQueries(t *testing.T) {
	t.Parallel()
	counted := &queryCounter{}
	h := pgxHandle(t, "counted", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = counted })
	require.NoError(t, schema.Check(t.Context(), h.db))
	assert.LessOrEqual(t, counted.queries.Load(), int64(8))
	assert.Positive(t, counted.queries.Load())
}

// queryCounter is a pgx tracer.
type queryCounter struct{ queries atomic.Int64 }

func (c *queryCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.queries.Add(1)
	return ctx
}

func (c *queryCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
