package libraries

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	atlas "ariga.io/atlas/sql/migrate"
	atlaspg "ariga.io/atlas/sql/postgres"
	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/schema"
)

// migrationTools run the files of a format as their users would.
var migrationTools = map[schema.Format]func(t *testing.T, url string, files fstest.MapFS){
	schema.Goose: func(t *testing.T, url string, files fstest.MapFS) {
		provider, err := goose.NewProvider(goose.DialectPostgres, open(t, url), files)
		require.NoError(t, err)
		_, err = provider.Up(t.Context())
		require.NoError(t, err)
	},
	schema.GolangMigrate: func(t *testing.T, url string, files fstest.MapFS) {
		source, err := iofs.New(files, ".")
		require.NoError(t, err)
		driver, err := migratepgx.WithInstance(open(t, url), &migratepgx.Config{})
		require.NoError(t, err)
		m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
		require.NoError(t, err)
		require.NoError(t, m.Up())
		sourceErr, dbErr := m.Close()
		require.NoError(t, errors.Join(sourceErr, dbErr))
	},
	schema.Plain: func(t *testing.T, url string, files fstest.MapFS) {
		db := open(t, url)
		names, err := fs.Glob(files, "*")
		require.NoError(t, err)
		for _, name := range names {
			// psql sends one statement after another.
			for _, statement := range strings.Split(string(files[name].Data), ";\n") {
				_, err := db.ExecContext(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
				require.NoError(t, err, name)
			}
		}
	},
}

// filesOf returns the result of Files as a folder, and the names in it.
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
	for _, tables := range []outbox.Tables{{}, {Schema: "Shop-1", Outbox: "select", Inbox: "_INBOX"}} {
		for format, run := range migrationTools {
			t.Run(string(format)+" "+tables.Outbox, func(t *testing.T) {
				url := newDatabase(t)
				files, _ := filesOf(t, schema.FilesConfig{Format: format, Tables: tables})
				run(t, url, files)
				db := openOutbox(t, open(t, url), tables)
				_, err := schema.Check(t.Context(), db, schema.CheckConfig{})
				require.NoError(t, err)
				ran, err := schema.Migrate(t.Context(), db, schema.MigrateConfig{})
				require.NoError(t, err)
				require.Empty(t, ran, "the files left work for Migrate")
			})
		}
	}
}

// TestFilesAmongTheUsersOwn adds the files to a folder with the user's own, whose numbers would clash.
func TestFilesAmongTheUsersOwn(t *testing.T) {
	t.Parallel()
	for format, suffix := range map[schema.Format]string{schema.Goose: ".sql", schema.GolangMigrate: ".up.sql"} {
		url := newDatabase(t)
		files, names := filesOf(t, schema.FilesConfig{Format: format, StartAt: 3})
		all, err := migrations.All()
		require.NoError(t, err)
		for i, m := range all {
			assert.Equal(t, fmt.Sprintf("%04d_watermill_%s%s", 3+i, m.Name, suffix), names[i])
		}
		files["0001_users"+suffix] = &fstest.MapFile{Data: []byte("-- +goose Up\ncreate table users ();\n")}
		files["0002_more"+suffix] = &fstest.MapFile{Data: []byte("-- +goose Up\nalter table users add name text;\n")}
		migrationTools[format](t, url, files)
		_, err = schema.Check(t.Context(), openOutbox(t, open(t, url), outbox.Tables{}), schema.CheckConfig{})
		require.NoError(t, err)
	}
}

// TestFilesForAtlas does what the commands migrate hash and migrate apply do.
func TestFilesForAtlas(t *testing.T) {
	t.Parallel()
	url, folder := newDatabase(t), t.TempDir()
	files, _ := filesOf(t, schema.FilesConfig{Format: schema.Plain, StartAt: 20})
	files["0001_users.sql"] = &fstest.MapFile{Data: []byte("create table users ();\n")}
	for name, file := range files {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), file.Data, 0o600))
	}
	dir, err := atlas.NewLocalDir(folder)
	require.NoError(t, err)
	sum, err := dir.Checksum()
	require.NoError(t, err)
	require.NoError(t, atlas.WriteSumFile(dir, sum))
	db := open(t, url)
	driver, err := atlaspg.Open(db)
	require.NoError(t, err)
	executor, err := atlas.NewExecutor(driver, dir, atlas.NopRevisionReadWriter{})
	require.NoError(t, err)
	require.NoError(t, executor.ExecuteN(t.Context(), 0))
	_, err = schema.Check(t.Context(), openOutbox(t, open(t, url), outbox.Tables{}), schema.CheckConfig{})
	require.NoError(t, err)
}

// TestFilesAreFiles writes the result of Files to disk, as a user would.
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
