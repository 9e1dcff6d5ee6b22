package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	// tryLockMigrations takes the lock that lets one migration at a time run in the whole database, or reports that
	// another session has it. The lock belongs to the transaction, so it works behind PgBouncer and ends with the
	// process.
	tryLockMigrations = `SELECT pg_try_advisory_xact_lock(hashtext('watermill-outbox migrations'))`

	createMigrations = `CREATE TABLE IF NOT EXISTS {migrations} (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`
	recordMigration = `INSERT INTO {migrations} (version, name, checksum) VALUES ($1, $2, $3) RETURNING applied_at`
)

const lockPause = 100 * time.Millisecond

// Cause: another process holds the lock.
// Cure: none is needed.
var errLocked = errors.New("another process is migrating")

// run is one call of Migrate.
type run struct {
	db    *core.DB
	names sqltext.Tables
	cfg   MigrateConfig
	all   []migrations.Migration
	ran   []Migration
}

// round runs all missing migrations in one transaction, under the lock. It returns errLocked if another session has the
// lock.
func (r *run) round(ctx context.Context) error {
	var ran []Migration
	err := r.db.Transact(ctx, func(q drive.Querier) error {
		ran = nil
		if err := genuine(ctx, q); err != nil {
			return fmt.Errorf("the server %w", err)
		}
		if _, err := q.Exec(ctx, sqltext.OrdinaryTables); err != nil {
			return err
		}
		free := false
		if err := drive.Collect(ctx, q, func(rows drive.Rows) error {
			return rows.Scan(&free)
		}, tryLockMigrations); err != nil {
			return fmt.Errorf("lock migrations: %w", err)
		}
		if !free {
			return errLocked
		}
		done, err := r.history(ctx, q)
		if err != nil {
			return err
		}
		if err := r.partitioned(ctx, q, done); err != nil {
			return err
		}
		for _, m := range r.all {
			if done.has(m.Version) {
				continue
			}
			if err := r.apply(ctx, q, m); err != nil {
				return fmt.Errorf("migration %s: %w", m, err)
			}
			at, err := r.record(ctx, q, m)
			if err != nil {
				return fmt.Errorf("record migration %s: %w", m, err)
			}
			ran = append(ran, Migration{m.Version, m.Name, at})
		}
		return nil
	})
	if err == nil {
		r.ran = append(r.ran, ran...)
	}
	return err
}

func (r *run) apply(ctx context.Context, q drive.Querier, m migrations.Migration) error {
	if err := r.free(ctx, q, m); err != nil {
		return err
	}
	if m.Version == 1 && r.cfg.PartitionSize > 0 {
		var err error
		if m.Text, err = m.InPartitions(r.cfg.PartitionSize); err != nil {
			return err
		}
	}
	for _, s := range m.Statements() {
		if _, err := q.Exec(ctx, r.names.Render(s)); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) record(ctx context.Context, q drive.Querier, m migrations.Migration) (at time.Time, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&at) }, r.names.Render(recordMigration),
		m.Version, m.Name, m.Checksum())
	return at, err
}

// history creates the table of migrations if it is missing, and reads it.
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
