package integration_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	atlas "ariga.io/atlas/sql/migrate"
	atlaspg "ariga.io/atlas/sql/postgres"
	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestFilesOfAConcurrentMigrationThatFailed does with each tool what docs/run/runbook.md says to do then. Without that
// the next run of golang-migrate and Atlas fails again.
func TestFilesOfAConcurrentMigrationThatFailed(t *testing.T) {
	extended(t)
	withConcurrent(t, "CREATE UNIQUE INDEX CONCURRENTLY {outbox_dead} ON {outbox} (topic) WHERE dead_at IS NOT NULL;\n")
	for format, tool := range map[schema.Format]func(*testing.T, *sql.DB, string) (up, repair func() error){
		schema.Goose: gooseIn, schema.GolangMigrate: golangMigrateIn, schema.Plain: atlasIn,
	} {
		t.Run(string(format), func(t *testing.T) {
			h, folder := newPgxHandle(t, newDatabase(t)), t.TempDir()
			migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{To: 1}, 1)
			for _, index := range []string{"inbox_processed", "outbox_idempotency_done"} { // as docs/start/migrations.md says
				h.exec(t, `alter index `+index+` set (autosummarize = true)`)
			}
			files, _ := filesOf(t, schema.FilesConfig{Format: format, From: 2, StartAt: 20})
			own := map[schema.Format]string{schema.GolangMigrate: "0001_users.up.sql"}[format]
			if own == "" {
				own = "0001_users.sql"
			}
			require.NoError(t, os.WriteFile(filepath.Join(folder, own), []byte("-- +goose Up\ncreate table users ();\n"), 0o600))
			for name, file := range files {
				require.NoError(t, os.WriteFile(filepath.Join(folder, name), file.Data, 0o600))
			}
			for range 2 {
				h.exec(t, `insert into outbox (uuid, topic, payload, dead_at) values ('', 'same', '', now())`)
			}
			db, err := sql.Open("pgx", h.url)
			require.NoError(t, err)
			defer db.Close()
			up, repair := tool(t, db, folder)
			require.ErrorContains(t, up(), "23505")
			valid := `select count(*) from pg_index where indexrelid = to_regclass('outbox_dead') and indisvalid = $1`
			require.Equal(t, 1, h.count(t, valid, false), "what the failed build left")

			h.exec(t, `delete from outbox`)
			if repair != nil {
				require.Error(t, up(), "it needs no repair")
				require.NoError(t, repair())
			}
			require.NoError(t, up())
			assert.Equal(t, 1, h.count(t, valid, true))
			migrates(t, h, sqltext.Tables{}, schema.MigrateConfig{})
		})
	}
}

func gooseIn(t *testing.T, db *sql.DB, folder string) (up, repair func() error) {
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(folder))
	require.NoError(t, err)
	return func() error { _, err := provider.Up(t.Context()); return err }, nil
}

func golangMigrateIn(t *testing.T, db *sql.DB, folder string) (up, repair func() error) {
	source, err := iofs.New(os.DirFS(folder), ".")
	require.NoError(t, err)
	driver, err := migratepgx.WithInstance(db, &migratepgx.Config{})
	require.NoError(t, err)
	m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
	require.NoError(t, err)
	return m.Up, func() error { return m.Force(1) } // 20 drops the index
}

func atlasIn(t *testing.T, db *sql.DB, folder string) (up, repair func() error) {
	dir, err := atlas.NewLocalDir(folder)
	require.NoError(t, err)
	sum, err := dir.Checksum()
	require.NoError(t, err)
	require.NoError(t, atlas.WriteSumFile(dir, sum))
	driver, err := atlaspg.Open(db)
	require.NoError(t, err)
	executor, err := atlas.NewExecutor(driver, dir, &atlasRevisions{}, atlas.WithAllowDirty(true))
	require.NoError(t, err)
	up = func() error { return executor.ExecuteN(t.Context(), 0) }
	return up, func() error {
		file, err := os.ReadFile(filepath.Join(folder, "0020_watermill_dead.sql"))
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), regexp.MustCompile(`DROP INDEX CONCURRENTLY .*;`).FindString(string(file)))
		return err
	}
}

// atlasRevisions keeps in memory what Atlas's command line keeps in a table.
type atlasRevisions struct{ list []*atlas.Revision }

func (*atlasRevisions) Ident() *atlas.TableIdent {
	return &atlas.TableIdent{Name: "atlas_schema_revisions"}
}

func (r *atlasRevisions) ReadRevisions(context.Context) ([]*atlas.Revision, error) {
	return r.list, nil
}

func (r *atlasRevisions) ReadRevision(_ context.Context, version string) (*atlas.Revision, error) {
	for _, one := range r.list {
		if one.Version == version {
			return one, nil
		}
	}
	return nil, atlas.ErrRevisionNotExist
}

func (r *atlasRevisions) WriteRevision(ctx context.Context, one *atlas.Revision) error {
	copied := *one
	_ = r.DeleteRevision(ctx, one.Version)
	r.list = append(r.list, &copied)
	return nil
}

func (r *atlasRevisions) DeleteRevision(_ context.Context, version string) error {
	for i, one := range r.list {
		if one.Version == version {
			r.list = append(r.list[:i], r.list[i+1:]...)
			return nil
		}
	}
	return nil
}
