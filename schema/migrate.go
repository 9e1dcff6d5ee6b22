package schema

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ErrSchemaChanged is returned by Migrate when a version that was applied differs from the one in
// this build, and by Check, within a *CheckError, for whatever it finds.
var ErrSchemaChanged = errors.New("schema does not match this version of the library")

// Explain adds the cure to the errors of a database that was not migrated and returns others as they are.
func Explain(err error) error {
	switch SQLState(err) {
	case "42P01", "3F000", "42703":
		return fmt.Errorf("%w (run schema.Migrate with the same schema.Names, or check them and the search_path)", err)
	}
	return err
}

// Applied is one migration that Migrate ran.
type Applied struct {
	Version int
	Name    string
}

//go:embed migrations/*.sql
var migrationFiles embed.FS

type migration struct {
	version int
	name    string
	text    string
}

func migrations() ([]migration, error) {
	entries, err := migrationFiles.ReadDir("migrations") // sorted by name
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, e := range entries {
		text, err := migrationFiles.ReadFile("migrations/" + e.Name())
		if err != nil {
			return nil, err
		}
		m := migration{text: string(text)}
		stem := strings.TrimSuffix(e.Name(), ".sql")
		if _, err := fmt.Sscanf(stem, "%04d_%s", &m.version, &m.name); err != nil {
			return nil, fmt.Errorf("migration file %s: %w", e.Name(), err)
		}
		all = append(all, m)
	}
	return all, nil
}

func (m migration) checksum() string {
	sum := sha256.Sum256([]byte(m.text))
	return hex.EncodeToString(sum[:])
}

// statements splits a migration. A statement ends with a semicolon at the end of a line; none of ours
// has one inside.
func (m migration) statements(n Names) []string {
	var list []string
	for _, s := range strings.Split(n.Render(m.text), ";\n") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}

const (
	createSchema = `CREATE SCHEMA IF NOT EXISTS `

	// Asked first, because createSchema takes the right to make schemas even if there is nothing to make.
	schemaExists = `SELECT to_regnamespace($1::text) IS NOT NULL`

	// One migration at a time in the whole database. The lock belongs to the transaction, so it works
	// behind PgBouncer and goes away with the process.
	lockMigrations = `SELECT pg_advisory_xact_lock(hashtext('watermill-outbox migrations'))`

	createMigrations = `CREATE TABLE IF NOT EXISTS {migrations} (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`
	appliedMigrations = `SELECT version, name, checksum FROM {migrations} ORDER BY version`
	recordMigration   = `INSERT INTO {migrations} (version, name, checksum) VALUES ($1, $2, $3)`
)

// Migrate brings the tables up to the version that this build needs and returns what it ran. All of it
// is one transaction: it happens as a whole or not at all. It is idempotent and safe to call from
// several processes at once. If a newer build has migrated further it does nothing, so that old
// processes can restart meanwhile. It creates Names.Schema only if that is missing; otherwise its role needs USAGE
// and CREATE on the schema, none on the database. It returns ErrBadName for names that are refused and ErrSchemaChanged if
// a version was applied with other contents than this build knows; any other error comes from the database.
func Migrate(ctx context.Context, db DB, names Names) ([]Applied, error) {
	if err := names.Validate(); err != nil {
		return nil, err
	}
	all, err := migrations()
	if err != nil {
		return nil, err
	}
	var ran []Applied
	err = db.Transact(ctx, func(q Querier) error {
		ran = nil
		if _, err := q.Exec(ctx, lockMigrations); err != nil {
			return fmt.Errorf("lock migrations: %w", err)
		}
		if err := ensureSchema(ctx, q, names.Schema); err != nil {
			return fmt.Errorf("create schema %s: %w", names.Schema, err)
		}
		if _, err := q.Exec(ctx, names.Render(createMigrations)); err != nil {
			return fmt.Errorf("create migrations table: %w", err)
		}
		done, err := readApplied(ctx, q, names)
		if err != nil {
			return err
		}
		if err := compareApplied(all, done); err != nil {
			return err
		}
		for _, m := range all[min(len(done), len(all)):] {
			for _, s := range m.statements(names) {
				if _, err := q.Exec(ctx, s); err != nil {
					return fmt.Errorf("migration %04d_%s: %w", m.version, m.name, err)
				}
			}
			if _, err := q.Exec(ctx, names.Render(recordMigration), m.version, m.name, m.checksum()); err != nil {
				return fmt.Errorf("record migration %04d_%s: %w", m.version, m.name, err)
			}
			ran = append(ran, Applied{m.version, m.name})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("migrate %s: %w", names.OutboxName(), err)
	}
	return ran, nil
}

// Init is Migrate for who does not care which versions ran: it creates the table set if it is missing
// and brings it up to date.
func Init(ctx context.Context, db DB, names Names) error {
	_, err := Migrate(ctx, db, names)
	return err
}

func ensureSchema(ctx context.Context, q Querier, name string) error {
	if name == "" {
		return nil
	}
	exists := false
	err := Collect(ctx, q, func(rows Rows) error { return rows.Scan(&exists) }, schemaExists, quote(name))
	if err != nil || exists {
		return err
	}
	_, err = q.Exec(ctx, createSchema+quote(name))
	return err
}

type appliedRow struct {
	version        int
	name, checksum string
}

func readApplied(ctx context.Context, q Querier, names Names) ([]appliedRow, error) {
	var done []appliedRow
	err := Collect(ctx, q, func(rows Rows) error {
		var a appliedRow
		if err := rows.Scan(&a.version, &a.name, &a.checksum); err != nil {
			return err
		}
		done = append(done, a)
		return nil
	}, names.Render(appliedMigrations))
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	return done, nil
}

// compareApplied refuses another history of the versions that this build knows. Newer ones are fine.
func compareApplied(all []migration, done []appliedRow) error {
	for i, a := range done[:min(len(done), len(all))] {
		if m := all[i]; a.version != m.version || a.checksum != m.checksum() {
			return fmt.Errorf("%w: version %d (%s) was applied with other contents", ErrSchemaChanged, a.version, a.name)
		}
	}
	return nil
}
