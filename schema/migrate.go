package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// ErrSchemaChanged is returned by Migrate when a version that was applied differs from the one in
// this build, and by Check, within a *CheckError, for whatever it finds.
var ErrSchemaChanged = errors.New("schema does not match this version of the library")

// MigrateConfig configures Migrate. The zero value runs all that is missing.
type MigrateConfig struct {
	// To is the last version to run; default the newest that this build knows.
	To int
	// SkipConcurrent leaves out the concurrent migrations, which may take long and make nothing possible that
	// is impossible without them. A later Migrate runs them. Until then Inspect warns of them.
	SkipConcurrent bool
}

// Migration is one version of the tables.
type Migration struct {
	Version int
	Name    string
	// Concurrent ones build or drop indexes without blocking writers, outside of any transaction.
	Concurrent bool
	// AppliedAt is when it was applied, by the database's clock; zero if it was not.
	AppliedAt time.Time
}

const (
	createSchema = `CREATE SCHEMA IF NOT EXISTS `

	// Asked first, because createSchema takes the right to make schemas even if there is nothing to make.
	schemaExists = `SELECT to_regnamespace($1::text) IS NOT NULL`

	// tryLockMigrations takes the lock that lets one migration at a time run in the whole database, or says
	// that somebody else has it. The lock belongs to the transaction, so it works behind PgBouncer and goes away with the process. Whoever
	// wants it asks again and again: a statement that waits for it has a snapshot, and CREATE INDEX CONCURRENTLY of the one who has
	// the lock waits for all snapshots that are older than its own.
	tryLockMigrations = `SELECT pg_try_advisory_xact_lock(hashtext('watermill-outbox migrations'))`

	createMigrations = `CREATE TABLE IF NOT EXISTS {migrations} (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`
	recordMigration = `INSERT INTO {migrations} (version, name, checksum) VALUES ($1, $2, $3) RETURNING applied_at`

	// relationsToBe lists those of some relations that are in the schema in which CREATE would make them. The search path
	// may lead to others of the same name.
	//
	// Arguments: names, schema ('' = that of the search path).
	relationsToBe = `SELECT n.name FROM unnest($1::text[]) AS n(name)
 WHERE to_regclass(CASE WHEN $2::text = '' THEN quote_ident(current_schema()) || '.' ELSE '' END || n.name) IS NOT NULL`
)

const lockPause = 100 * time.Millisecond

var errLocked = errors.New("another process is migrating")

// Migrate brings the tables up to the version that this build needs and returns what it ran, also with an error. It is
// idempotent and safe to call from several processes at once: one works, the others wait for it. If a newer build has
// migrated further it does nothing, so that old processes can restart meanwhile.
//
// Migrations run in transactions, neighbours in one, which happens as a whole or not at all. A concurrent migration
// runs after those before it were committed, on a second connection. It waits for every transaction in the database that
// is older than it, so give ctx the time, and the role no statement_timeout that is too short. One that failed half-way is
// repeated by the next Migrate: an index that was left invalid is dropped first.
//
// It creates Tables.Schema only if that is missing; otherwise its role needs USAGE and CREATE on the schema, none on the
// database, and if there is nothing to do only SELECT on the table of migrations. It returns outbox.ErrNoDB, and
// ErrSchemaChanged if a version was applied with other contents than this build knows; any other error
// comes from the database.
func Migrate(ctx context.Context, db *outbox.DB, cfg MigrateConfig) ([]Migration, error) {
	all, err := known(db)
	if err != nil {
		return nil, err
	}
	if cfg.To < 0 || cfg.To > len(all) {
		return nil, fmt.Errorf("MigrateConfig.To is %d: this build knows versions 1 to %d, and 0 means all", cfg.To, len(all))
	}
	if cfg.To > 0 {
		all = all[:cfg.To]
	}
	r := run{db: (*core.DB)(db), names: (*core.DB)(db).Tables(), cfg: cfg, all: all}
	for more := true; more; {
		more, err = r.round(ctx)
		if errors.Is(err, errLocked) {
			err = nil
			more = true
			select {
			case <-time.After(lockPause):
			case <-ctx.Done():
				err = fmt.Errorf("%w: %w", errLocked, ctx.Err())
			}
		}
		if err != nil {
			return r.ran, fmt.Errorf("migrate %s: %w", r.names.OutboxName(), explainMigrate(ctx, r.db, r.names, err))
		}
	}
	return r.ran, nil
}

// Status returns the migrations that this build knows and those that a newer one has applied, in their order. It changes
// nothing. It returns outbox.ErrNoDB; any other error comes from the database.
func Status(ctx context.Context, db *outbox.DB) ([]Migration, error) {
	all, err := known(db)
	if err != nil {
		return nil, err
	}
	names := (*core.DB)(db).Tables()
	done, err := readHistory(ctx, (*core.DB)(db), names)
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", names.OutboxName(), err)
	}
	var list []Migration
	for _, m := range all {
		a := done.of(m.Version)
		list = append(list, Migration{m.Version, m.Name, m.Concurrent, a.at})
	}
	for _, a := range done {
		if a.version > len(all) {
			list = append(list, Migration{Version: a.version, Name: a.name, AppliedAt: a.at})
		}
	}
	return list, nil
}

func known(db *outbox.DB) ([]migrations.Migration, error) {
	if err := (*core.DB)(db).Check(); err != nil {
		return nil, err
	}
	return migrations.All()
}

// run is one call of Migrate.
type run struct {
	db    *core.DB
	names sqltext.Tables
	cfg   MigrateConfig
	all   []migrations.Migration
	ran   []Migration
}

// round runs, under the lock, the next migrations that go into one transaction, or the next concurrent one. It
// returns errLocked if somebody else has the lock.
func (r *run) round(ctx context.Context) (more bool, err error) {
	var ran []Migration
	err = r.db.Transact(ctx, func(q drive.Querier) error {
		ran, more = nil, false
		if err := genuine(ctx, q); err != nil {
			return fmt.Errorf("the server %w", err)
		}
		free := false
		if err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&free) }, tryLockMigrations); err != nil {
			return fmt.Errorf("lock migrations: %w", err)
		}
		if !free {
			return errLocked
		}
		done, err := r.history(ctx, q)
		if err != nil {
			return err
		}
		for _, m := range r.all {
			if done.has(m.Version) || m.Concurrent && r.cfg.SkipConcurrent {
				continue
			}
			if m.Concurrent && len(ran) > 0 {
				more = true // it has to see what this transaction did
				return nil
			}
			if err := r.apply(ctx, q, m); err != nil {
				return fmt.Errorf("migration %s: %w", m, err)
			}
			at, err := r.record(ctx, q, m)
			if err != nil {
				return fmt.Errorf("record migration %s: %w", m, err)
			}
			ran = append(ran, Migration{m.Version, m.Name, m.Concurrent, at})
			if m.Concurrent {
				more = true
				return nil
			}
		}
		return nil
	})
	if err == nil {
		r.ran = append(r.ran, ran...)
	}
	return more, err
}

func (r *run) apply(ctx context.Context, q drive.Querier, m migrations.Migration) error {
	if m.Concurrent {
		return r.concurrently(ctx, q, m)
	}
	if err := r.free(ctx, q, m); err != nil {
		return err
	}
	for _, s := range m.Statements() {
		if _, err := q.Exec(ctx, r.names.Render(s)); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) record(ctx context.Context, q drive.Querier, m migrations.Migration) (at time.Time, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&at) }, r.names.Render(recordMigration), m.Version, m.Name, m.Checksum())
	return at, err
}

// history makes the table of migrations if it is missing and reads it.
func (r *run) history(ctx context.Context, q drive.Querier) (history, error) {
	there, err := relations(ctx, q, r.names, "{migrations}")
	if err != nil {
		return nil, err
	}
	if len(there) == 0 {
		if err := ensureSchema(ctx, q, r.names.Schema); err != nil {
			return nil, fmt.Errorf("create schema %s: %w", r.names.Schema, err)
		}
		if _, err := q.Exec(ctx, r.names.Render(createMigrations)); err != nil {
			return nil, fmt.Errorf("create migrations table: %w", err)
		}
	}
	done, err := readApplied(ctx, q, r.names)
	if err != nil {
		return nil, err
	}
	return done, done.compare(r.all)
}

// free returns an error if a table of another program has the name of one that the migration makes.
func (r *run) free(ctx context.Context, q drive.Querier, m migrations.Migration) error {
	var ours []string
	for _, w := range wanted {
		if strings.Contains(m.Text, w.create(w.name)) {
			ours = append(ours, w.name)
		}
	}
	if len(ours) == 0 {
		return nil
	}
	there, err := relations(ctx, q, r.names, ours...)
	if err != nil {
		return err
	}
	for _, name := range ours {
		if slices.Contains(there, r.names.Render(name)) {
			return foreign(r.names, name)
		}
	}
	return nil
}

func foreign(names sqltext.Tables, placeholder string) error {
	return fmt.Errorf("a relation %s exists and was not made by Migrate: %s; if it is ours after all, restore the rows of %s",
		names.Render(placeholder), anotherName(placeholder), names.Render("{migrations}"))
}

// anotherName is the cure where a table of another program has the name of one of ours.
func anotherName(placeholder string) string {
	field, _, _ := strings.Cut(strings.Trim(placeholder, "{}"), "_") // outbox_life follows outbox
	field = strings.ToUpper(field[:1]) + field[1:]
	return fmt.Sprintf(`choose another name for ours, outbox.Tables{%s: "..."}`, field)
}

// relations returns those of some relations of ours that exist where CREATE would make them, as they are rendered.
func relations(ctx context.Context, q drive.Querier, names sqltext.Tables, placeholders ...string) ([]string, error) {
	rendered := make([]string, len(placeholders))
	for i, p := range placeholders {
		rendered[i] = names.Render(p)
	}
	var there []string
	err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		var name string
		err := rows.Scan(&name)
		there = append(there, name)
		return err
	}, relationsToBe, rendered, names.Schema)
	return there, err
}

func ensureSchema(ctx context.Context, q drive.Querier, name string) error {
	if name == "" {
		return nil
	}
	exists := false
	err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&exists) }, schemaExists, sqltext.Quote(name))
	if err != nil || exists {
		return err
	}
	_, err = q.Exec(ctx, createSchema+sqltext.Quote(name))
	return err
}
