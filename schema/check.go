package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Check compares a live database with what the code needs. It returns nil, or ErrSchemaChanged with every problem and
// its cure. It reads the catalogs in a few short queries and changes nothing.
//
// It also checks the grants of the connection's role: a forwarder's, or a publisher's if the role may insert messages
// but not read them. Settings of the role or the database that make statements fail or alter texts are problems. Your
// own columns and indexes are not, unless a column is NOT NULL and has no default. Indexes are recognised by their
// definitions, not their names. Warnings of Inspect are not errors here.
//
// Check waits for a lock at most 5 seconds; then the error names the session that holds it. It returns outbox.ErrNoDB;
// other errors come from the database.
func Check(ctx context.Context, db *outbox.DB) error {
	c, err := inspectAll(ctx, db)
	if err != nil {
		return err
	}
	return c.errors(false)
}

// CheckOutbox is Check for publishing and forwarding alone: the outbox, its lanes, forwarders and topics. It ignores
// problems of other tables and migrations that only concern them, so the outbox of a database at an older migration
// keeps working.
func CheckOutbox(ctx context.Context, db *outbox.DB) error {
	c, err := inspectAll(ctx, db)
	if err != nil {
		return err
	}
	return c.errors(true)
}

// errors returns the problems that are not warnings as an error, or nil.
func (c *inspection) errors(ofOutbox bool) error {
	var problems []Problem
	for i, p := range c.found {
		if !p.Warning && !(ofOutbox && c.optional[i]) {
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 {
		return &checkError{problems}
	}
	return nil
}

// Inspect is Check with warnings: costly settings of the role, settings that make a crash lose more or let the tables
// grow, rows that row security may hide, messages that wait without a live forwarder, checks that will refuse messages,
// grants that only some parts need, and migrations of a newer version. It looks for waiting messages only if the tables
// and indexes are right, and reports the session that has locked them after 2 seconds.
func Inspect(ctx context.Context, db *outbox.DB) ([]Problem, error) {
	c, err := inspectAll(ctx, db)
	if err != nil {
		return nil, err
	}
	if c.stop || c.damaged {
		return c.found, nil
	}
	if err := c.soonAlive(ctx, (*core.DB)(db)); err != nil && text.SQLState(err) != text.InsufficientPrivilege {
		// which is among the problems found
		return nil, fmt.Errorf("check %s: %w", c.names.OutboxName(), err)
	}
	return c.found, nil
}

func inspectAll(ctx context.Context, db *outbox.DB) (*inspection, error) {
	all, err := known(db)
	if err != nil {
		return nil, err
	}
	c, err := inspect(ctx, (*core.DB)(db), (*core.DB)(db).Tables(), all)
	for range secondLooks {
		if err != nil || !c.damaged {
			break
		}
		found := c.found
		c, err = inspect(ctx, (*core.DB)(db), (*core.DB)(db).Tables(), all)
		if err == nil && slices.Equal(found, c.found) {
			break
		}
	}
	return c, err
}

// secondLooks is the number of times that damage is checked again: a partition may be dropped between two statements of
// a check.
const secondLooks = 3

// database is a *core.DB, or a test's.
type database interface {
	drive.Querier
	Transact(ctx context.Context, fn func(drive.Querier) error) error
}

func inspect(ctx context.Context, db database, names sqltext.Tables, all []migrations.Migration) (*inspection, error) {
	c := &inspection{q: db, names: names, all: all, optional: map[int]bool{}}
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

// alive reports that no forwarder runs.
func (c *inspection) alive(ctx context.Context) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var lives, waits bool
		if err := rows.Scan(&lives, &waits); err != nil {
			return err
		}
		if waits && !lives {
			c.warning("table "+c.names.Render("{forwarders}"), "run a forwarder.Forwarder, or a Subscriber, on these tables",
				sqltext.NoForwarder)
		}
		return nil
	}, c.names.Render(sqltext.CheckAlive))
}

type inspection struct {
	q     drive.Querier
	names sqltext.Tables
	all   []migrations.Migration
	found []Problem

	notForOutbox bool         // the outbox itself does not need the objects being checked
	optional     map[int]bool // indexes in found of problems with those objects

	role                 string
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
	c.damaged = true
	c.denial(object, cure, found, args...)
}

// denial reports a problem other than damage to the tables.
func (c *inspection) denial(object, cure, found string, args ...any) {
	if c.notForOutbox {
		c.optional[len(c.found)] = true
	}
	c.found = append(c.found, Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure})
}

func (c *inspection) warning(object, cure, found string, args ...any) {
	c.found = append(c.found, Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure, Warning: true})
}

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
