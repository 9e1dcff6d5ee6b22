package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// CheckConfig configures Check.
type CheckConfig struct {
	// OnlyOutbox leaves out problems of tables that publishing and forwarding do not use, and of migrations that only
	// concern those. A forwarder checks this when it starts.
	OnlyOutbox bool
	// Roles are the names of the roles whose privileges are checked; default: the role of the connection. A role that
	// does not exist lacks nothing.
	Roles []string
}

// Check compares a live database with what the code needs. It returns all problems with their cures, and an error
// unless all of them are warnings: ErrSchemaChanged, whose text lists the problems that are not. It reads the catalogs
// in a few short queries and changes nothing.
//
// Your own columns and indexes are not problems, unless a column is NOT NULL and has no default. Indexes are recognised
// by their definitions, not their names. Settings of the role or the database that make statements fail or alter texts
// are problems, and so are grants that a forwarder lacks, or a publisher if the role may insert messages but not read
// them.
//
// Warnings are costly settings, settings that make a crash lose more or let the tables grow, rows that row security may
// hide, triggers that may swallow inserts, grants that only some parts need, and migrations of a newer version.
//
// Check waits for a lock at most 5 seconds; then the error names the session that holds it. It returns outbox.ErrNoDB
// and an error that names an invalid field; other errors come from the database.
func Check(ctx context.Context, db *outbox.DB, cfg CheckConfig) ([]Problem, error) {
	all, err := known(db)
	if err != nil {
		return nil, err
	}
	if slices.Contains(cfg.Roles, "") {
		return nil, errors.New("CheckConfig.Roles has an empty name: no role has it, so nothing is checked for it: " +
			"leave it out")
	}
	c, err := inspect(ctx, (*core.DB)(db), cfg, (*core.DB)(db).Tables(), all)
	for range rechecks {
		if err != nil || !c.damaged {
			break
		}
		found := c.found
		c, err = inspect(ctx, (*core.DB)(db), cfg, (*core.DB)(db).Tables(), all)
		if err == nil && slices.Equal(found, c.found) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return c.found, schemaChanged(c.found)
}

// rechecks is the number of times that damage is checked again: a partition may be dropped between two statements of
// a check.
const rechecks = 3

// database is a *core.DB, or a test's.
type database interface {
	drive.Querier
	Transact(ctx context.Context, fn func(drive.Querier) error) error
}

func inspect(
	ctx context.Context, db database, cfg CheckConfig, names sqltext.Tables, all []migrations.Migration,
) (*inspection, error) {
	c := &inspection{q: db, cfg: cfg, names: names, all: all}
	err := c.steps(ctx, c.server, c.settings)
	if err == nil && !c.stop {
		err = db.Transact(ctx, func(q drive.Querier) error {
			c.q = q
			return c.steps(ctx, c.whoAsks, c.readCatalog, c.anything, c.foreign, c.grants, c.migrations)
		})
		c.q = db
	}
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", names.OutboxName(), explainLocked(ctx, db, names, err))
	}
	if c.stop {
		return c, nil
	}
	c.compare()
	return c, nil
}

// steps runs checks one after another until one finds a problem that makes the rest misleading.
func (c *inspection) steps(ctx context.Context, list ...func(context.Context) error) error {
	for _, step := range list {
		if err := step(ctx); err != nil || c.stop {
			return err
		}
	}
	return nil
}

type inspection struct {
	q     drive.Querier
	cfg   CheckConfig
	names sqltext.Tables
	all   []migrations.Migration
	found []Problem

	notForOutbox bool // the outbox itself does not need the objects being checked

	role                 string // of the connection
	standby              bool
	encoding             string // of the database
	unusualSettings      bool   // some settings need a check
	stop                 bool   // the rest would fail or mislead
	damaged              bool   // the statements would fail
	cannotReadMigrations bool
	behind               bool              // Migrate has migrations to run
	facts                map[string][]fact // of each existing relation
	// of the outbox; empty if it is one table
	partitions []partitions.Partition
}

func (c *inspection) problem(object, cure, found string, args ...any) {
	c.damaged = c.damaged || !c.leavesOut()
	c.denial(object, cure, found, args...)
}

// denial reports a problem other than damage to the tables.
func (c *inspection) denial(object, cure, found string, args ...any) {
	c.add(Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure})
}

func (c *inspection) warning(object, cure, found string, args ...any) {
	c.add(Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure, Warning: true})
}

func (c *inspection) add(p Problem) {
	if !c.leavesOut() {
		c.found = append(c.found, p)
	}
}

// leavesOut reports whether problems of the objects being checked were not asked for.
func (c *inspection) leavesOut() bool { return c.notForOutbox && c.cfg.OnlyOutbox }

// anything reports a missing set of tables in one line.
func (c *inspection) anything(ctx context.Context) error {
	if len(c.facts) > 0 {
		return nil
	}
	c.stop = true
	cure := runMigrate + ", or correct the names or the search_path"
	var elsewhere []string
	err := drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var schema string
		err := rows.Scan(&schema)
		elsewhere = append(elsewhere, sqltext.Quote(schema))
		return err
	}, sqltext.CheckElsewhere, c.names.WithDefaults().Outbox)
	if len(elsewhere) > 0 {
		cure += "; or, if the one in schema " + strings.Join(elsewhere, ", ") +
			" is meant, set Tables.Schema, and GRANT USAGE ON SCHEMA to role " + sqltext.Quote(c.role)
	}
	c.problem("table "+c.names.OutboxName(), cure, "and the other tables of its set do not exist")
	return err
}

// foreign finds another program's tables with the names of ours.
func (c *inspection) foreign(context.Context) error {
	for _, t := range tables {
		columns, missing := 0, 0
		for _, want := range expectedFacts() {
			if want.relation == t.name && want.kind == "column" {
				columns++
				if _, ok := c.fact(t.name, "column", want.name); !ok {
					missing++
				}
			}
		}
		if live, _ := c.fact(t.name, "table", ""); live.typ == "table" && missing > columns/2 {
			c.stop = true
			c.problem("table "+c.names.Render(t.name), anotherName(t.name),
				"belongs to another program: it lacks %d of our %d columns", missing, columns)
		}
	}
	return nil
}

func (c *inspection) migrations(ctx context.Context) error {
	if c.cannotReadMigrations {
		return nil
	}
	var done history
	if _, ok := c.fact("{migrations}", "table", ""); ok {
		for _, column := range []string{"version", "name", "checksum", "applied_at"} {
			if _, ok := c.fact("{migrations}", "column", column); !ok {
				return nil // reported with the columns
			}
		}
		var err error
		if done, err = readApplied(ctx, c.q, c.names); err != nil {
			return err
		}
	}
	for _, a := range done {
		switch {
		case a.version > len(c.all):
			c.warning("migration", "upgrade the library", "%04d_%s was applied by a newer version", a.version, a.name)
		case a.version < 1 || a.checksum != c.all[a.version-1].Checksum():
			c.problem("migration", "find out what applied it", "%04d_%s was applied with different "+
				"contents", a.version, a.name)
		}
	}
	defer func() { c.notForOutbox = false }()
	for _, m := range c.all {
		switch {
		case done.has(m.Version):
		default:
			c.behind, c.notForOutbox = true, !ofOutbox(m)
			c.problem("migration", runMigrate, "%s was not applied to %s", m, c.names.OutboxName())
		}
	}
	return nil
}
