package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Check compares a live database with what the code needs and returns nil if it fits, else a *CheckError that
// names every problem and its cure. It returns outbox.ErrNoDB; any other error comes from the database. It reads the
// catalogs in a handful of short queries and changes nothing.
//
// It waits for a lock at most 5 seconds; then the error says who has it. A partition that is rewritten does not hold it
// up.
//
// It also asks for the grants of the connection's role: those of a forwarder, or, if the role may insert messages
// but not read them, those of a publisher alone.
//
// A setting of the role or the database under which nothing works, or texts would be altered, is a problem, and the
// cure says how to reset it.
//
// Columns and indexes of your own are no problem, unless a column of yours must be given and has no
// default. Indexes are recognised by what they do, not by their names. What Inspect calls a warning is no
// error here.
func Check(ctx context.Context, db *outbox.DB) error {
	c, err := inspectAll(ctx, db)
	if err != nil {
		return err
	}
	return c.errors(false)
}

// CheckOutbox is Check for what publishes and forwards alone: the outbox, its lanes, forwarders and topics. What is
// wrong with the inbox, the queue, the audit log or the answers to HTTP requests is no error here, nor is a migration
// that was not applied and is only about those. So a database at an older migration keeps an outbox that works.
func CheckOutbox(ctx context.Context, db *outbox.DB) error {
	c, err := inspectAll(ctx, db)
	if err != nil {
		return err
	}
	return c.errors(true)
}

// errors returns what is no warning as a *CheckError, or nil.
func (c *inspection) errors(ofOutbox bool) error {
	var problems []Problem
	for i, p := range c.found {
		if !p.Warning && !(ofOutbox && c.besides[i]) {
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 {
		return &CheckError{problems}
	}
	return nil
}

// Inspect is Check with the warnings: settings of the role that cost something, or make a crash lose more, settings
// under which the tables grow without need, rows that row security may hide, messages that wait though no forwarder
// lives, checks that will refuse messages, grants that only some parts need, and migrations that a newer version of the library applied. For messages that wait it looks only where the tables and
// their indexes are as they should be, and says who has locked them if it has to wait for more than 2 seconds.
func Inspect(ctx context.Context, db *outbox.DB) ([]Problem, error) {
	c, err := inspectAll(ctx, db)
	if err != nil {
		return nil, err
	}
	if c.useless || c.damaged {
		return c.found, nil
	}
	if err := c.soonAlive(ctx, (*core.DB)(db)); err != nil && text.SQLState(err) != text.InsufficientPrivilege {
		// which is among what was found
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

// secondLooks is how often what is damaged is looked at again: while Partition swaps tables, one look may find the name
// of the old table and what is already that of the new one.
const secondLooks = 3

// database is a *core.DB, or one of a test.
type database interface {
	drive.Querier
	Transact(ctx context.Context, fn func(drive.Querier) error) error
}

func inspect(ctx context.Context, db database, names sqltext.Tables, all []migrations.Migration) (*inspection, error) {
	c := &inspection{q: db, names: names, all: all, besides: map[int]bool{}}
	err := c.steps(ctx, c.server, c.settings)
	if err == nil && !c.useless {
		err = db.Transact(ctx, func(q drive.Querier) error {
			c.q = q
			return c.steps(ctx, c.whoAsks, c.readCatalog, c.anything, c.foreign, c.bounds, c.grants, c.migrations)
		})
		c.q = db
	}
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", names.OutboxName(), explainLocked(ctx, db, names, err))
	}
	if c.useless {
		return c, nil
	}
	c.compare()
	return c, nil
}

// steps takes one after another until one finds that the rest would mislead.
func (c *inspection) steps(ctx context.Context, list ...func(context.Context) error) error {
	for _, step := range list {
		if err := step(ctx); err != nil || c.useless {
			return err
		}
	}
	return nil
}

// alive finds out why nothing is published: no forwarder runs.
func (c *inspection) alive(ctx context.Context) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var lives, waits bool
		if err := rows.Scan(&lives, &waits); err != nil {
			return err
		}
		if waits && !lives {
			c.warning("table "+c.names.Render("{forwarders}"), "run a forwarder.Forwarder, or a Subscriber, on these tables",
				sqltext.Deserted)
		}
		return nil
	}, c.names.Render(sqltext.CheckAlive))
}

type inspection struct {
	q     drive.Querier
	names sqltext.Tables
	all   []migrations.Migration
	found []Problem

	beside  bool         // what is looked at now is nothing that the outbox itself needs
	besides map[int]bool // the problems that were found meanwhile

	role     string
	standby  bool
	encoding string            // of the database
	odd      bool              // there are settings to look at
	useless  bool              // the rest would fail or mislead
	damaged  bool              // something is not as the statements need it
	blind    bool              // the role may not read which migrations were applied
	behind   bool              // Migrate has something to do
	facts    map[string][]fact // of each relation that there is
	// of the outbox; none if it is one table
	partitions []leaves.Leaf
}

func (c *inspection) problem(object, cure, found string, args ...any) {
	c.damaged = true
	c.denial(object, cure, found, args...)
}

// denial is a problem that leaves the tables as they should be.
func (c *inspection) denial(object, cure, found string, args ...any) {
	if c.beside {
		c.besides[len(c.found)] = true
	}
	c.found = append(c.found, Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure})
}

func (c *inspection) warning(object, cure, found string, args ...any) {
	c.found = append(c.found, Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure, Warning: true})
}

// anything says it in one line if nothing is there.
func (c *inspection) anything(ctx context.Context) error {
	if len(c.facts) > 0 {
		return nil
	}
	c.useless = true
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
	c.problem("table "+c.names.OutboxName(), cure, "and all others of its set do not exist")
	return err
}

// foreign finds tables of another program that have the names of ours.
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
			c.useless = true
			c.problem("table "+c.names.Render(t.name), anotherName(t.name),
				"is that of another program: it lacks %d of our %d columns", missing, columns)
		}
	}
	return nil
}

func (c *inspection) migrations(ctx context.Context) error {
	if c.blind {
		return nil
	}
	var done history
	if _, ok := c.fact("{migrations}", "table", ""); ok {
		for _, column := range []string{"version", "name", "checksum", "applied_at"} {
			if _, ok := c.fact("{migrations}", "column", column); !ok {
				return nil // which is reported with the columns
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
			c.problem("migration", "find out what applied it", "%04d_%s was applied with other contents", a.version, a.name)
		}
	}
	defer func() { c.beside = false }()
	for _, m := range c.all {
		switch {
		case done.has(m.Version):
		default:
			c.behind, c.beside = true, !ofOutbox(m)
			c.problem("migration", runMigrate, "%s was not applied to %s", m, c.names.OutboxName())
		}
	}
	return nil
}
