package schema

import (
	"context"
	"fmt"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Problem is one thing in which a database differs from what the code needs.
type Problem struct {
	Object  string // what it is about, such as `index "outbox_ready"`
	Found   string // what is wrong with it
	Cure    string // what to do
	Warning bool   // all works, but worse than it could, or not for long
}

// String returns the problem and its cure as one line, or more if the cure is a statement.
func (p Problem) String() string { return p.Object + " " + p.Found + ": " + p.Cure }

// CheckError is returned by Check and lists all that it found. errors.Is finds ErrSchemaChanged in it.
type CheckError struct {
	Problems []Problem
}

// Error lists all problems and their cures.
func (e *CheckError) Error() string {
	list := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		list[i] = p.String()
	}
	return ErrSchemaChanged.Error() + ": " + strings.Join(list, "\n")
}

// Unwrap returns ErrSchemaChanged.
func (e *CheckError) Unwrap() error { return ErrSchemaChanged }

// Check compares a live database with what the code needs and returns nil if it fits, else a *CheckError that
// names every problem and its cure. It returns outbox.ErrNoDB; any other error comes from the database. It reads the
// catalogs in a handful of short queries and changes nothing.
//
// It also asks for the grants of the connection's role: those of a forwarder, or, if the role may insert messages
// but not read them, those of a publisher alone.
//
// Columns and indexes of your own are no problem, unless a column of yours must be given and has no
// default. Indexes are recognised by what they do, not by their names. What Inspect calls a warning is no
// error here.
func Check(ctx context.Context, db *outbox.DB) error {
	found, err := inspectAll(ctx, db)
	if err != nil {
		return err
	}
	var problems []Problem
	for _, p := range found {
		if !p.Warning {
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 {
		return &CheckError{problems}
	}
	return nil
}

// Inspect is Check with the warnings: settings under which the tables grow without need, rows
// that row security may hide, messages that wait though no forwarder lives, grants that only some parts need,
// concurrent migrations that were put off, and migrations that a newer version of the library applied.
func Inspect(ctx context.Context, db *outbox.DB) ([]Problem, error) {
	found, err := inspectAll(ctx, db)
	if err != nil || len(found) > 0 {
		return found, err
	}
	c := inspection{q: (*core.DB)(db), names: (*core.DB)(db).Tables()}
	if err := c.alive(ctx); err != nil {
		return nil, fmt.Errorf("check %s: %w", c.names.OutboxName(), err)
	}
	return c.found, nil
}

func inspectAll(ctx context.Context, db *outbox.DB) ([]Problem, error) {
	all, err := known(db)
	if err != nil {
		return nil, err
	}
	return inspect(ctx, (*core.DB)(db), (*core.DB)(db).Tables(), all)
}

func inspect(ctx context.Context, q drive.Querier, names sqltext.Tables, all []migrations.Migration) ([]Problem, error) {
	c := inspection{q: q, names: names, all: all, putOff: map[string]bool{}}
	for _, step := range []func(context.Context) error{c.server, c.whoAsks, c.read, c.anything, c.foreign, c.grants, c.migrations} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("check %s: %w", names.OutboxName(), err)
		}
		if c.useless {
			return c.found, nil
		}
	}
	for _, w := range wanted {
		if w.seq != "" {
			c.sequence(w)
		}
	}
	for _, w := range wanted {
		c.table(w)
	}
	return c.found, nil
}

// alive finds out why nothing is published: nobody does.
func (c *inspection) alive(ctx context.Context) error {
	return drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var lives, waits bool
		if err := rows.Scan(&lives, &waits); err != nil {
			return err
		}
		if waits && !lives {
			c.warning("table "+c.names.Render("{forwarders}"), "run a forwarder.Forwarder, or a Subscriber, with the same tables",
				"has no forwarder that is alive, and messages have been waiting for more than a minute")
		}
		return nil
	}, c.names.Render(sqltext.CheckAlive))
}

const runMigrate = "run schema.Migrate with the same handle"

type inspection struct {
	q     drive.Querier
	names sqltext.Tables
	all   []migrations.Migration
	found []Problem

	role      string
	useless   bool            // the rest would fail or mislead
	blind     bool            // the role may not read which migrations were applied
	behind    bool            // Migrate has something to do
	putOff    map[string]bool // indexes of concurrent migrations that were not applied
	relations map[string]relation
	sequences map[string]sequence
}

func (c *inspection) problem(object, cure, found string, args ...any) {
	c.found = append(c.found, Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure})
}

func (c *inspection) warning(object, cure, found string, args ...any) {
	c.found = append(c.found, Problem{Object: object, Found: fmt.Sprintf(found, args...), Cure: cure, Warning: true})
}

// anything says it in one line if nothing is there.
func (c *inspection) anything(ctx context.Context) error {
	if len(c.relations) > 0 {
		return nil
	}
	c.useless = true
	cure := runMigrate + ", or mend the names or the search_path"
	var elsewhere []string
	err := drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var schema string
		err := rows.Scan(&schema)
		elsewhere = append(elsewhere, sqltext.Quote(schema))
		return err
	}, sqltext.CheckElsewhere, c.names.WithDefaults().Outbox)
	if len(elsewhere) > 0 {
		cure += "; or, if the one in schema " + strings.Join(elsewhere, ", ") + " is meant, set Tables.Schema, and GRANT USAGE ON SCHEMA to role " + sqltext.Quote(c.role)
	}
	c.problem("table "+c.names.OutboxName(), cure, "and all others of its set do not exist")
	return err
}

// foreign finds tables of another program that have the names of ours.
func (c *inspection) foreign(context.Context) error {
	for _, w := range wanted {
		name := c.names.Render(w.name)
		live, ok := c.relations[name]
		if !ok || !live.isTable() {
			continue
		}
		missing := 0
		for _, column := range w.columns {
			if _, ok := live.columns[column.name]; !ok {
				missing++
			}
		}
		if missing > len(w.columns)/2 {
			c.useless = true
			c.problem("table "+name, anotherName(w.name), "is that of another program: it lacks %d of our %d columns", missing, len(w.columns))
		}
	}
	return nil
}

func (c *inspection) migrations(ctx context.Context) error {
	if c.blind {
		return nil
	}
	var done history
	if r, ok := c.relations[c.names.Render("{migrations}")]; ok {
		for _, column := range []string{"version", "name", "checksum", "applied_at"} {
			if _, ok := r.columns[column]; !ok {
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
	for _, m := range c.all {
		switch {
		case done.has(m.Version):
		case m.Concurrent:
			c.warning("migration", runMigrate, "%s was put off", m)
			for _, s := range m.Statements() {
				if index, _, ok := migrations.BuildsIndex(s); ok {
					c.putOff[c.names.Render(index)] = true
				}
			}
		default:
			c.behind = true
			c.problem("migration", runMigrate, "%s was not applied to %s", m, c.names.OutboxName())
		}
	}
	return nil
}

func (c *inspection) sequence(w wantedTable) {
	name := c.names.Render(w.seq)
	object := "sequence " + name
	seq, ok := c.sequences[name]
	if !ok {
		c.problem(object, c.cure("CREATE SEQUENCE "+name+" "), "is missing")
		return
	}
	alter := func(clause string) string { return "ALTER SEQUENCE " + name + " " + clause }
	if seq.increment <= 0 {
		c.problem(object, alter("INCREMENT 1"), "counts by %d: ids must rise", seq.increment)
	}
	if seq.cache != 1 {
		c.problem(object, alter("CACHE 1"), "has a cache of %d: sessions would use ids late and break the order", seq.cache)
	}
	if seq.cycle {
		c.problem(object, alter("NO CYCLE"), "cycles: ids would start over")
	}
	if seq.kind != "bigint" {
		c.problem(object, alter("AS bigint"), "is of type %s, not bigint", seq.kind)
	}
	if c.relations[c.names.Render(w.name)].persistence == "p" { // else one statement cures both
		c.logged(object, alter("SET LOGGED"), c.relations[name])
	}
}

func (c *inspection) logged(object, cure string, r relation) {
	switch r.persistence {
	case "u":
		c.problem(object, cure, "is unlogged: a crash of the server would empty it")
	case "t":
		c.problem(object, "drop it", "is temporary and hides the real one")
	}
}

func (c *inspection) table(w wantedTable) {
	name := c.names.Render(w.name)
	object := "table " + name
	live, ok := c.relations[name]
	if !ok {
		cure := c.cure(w.create(name))
		if w.name == "{migrations}" {
			cure = "restore it, or create it and record the migrations as the last statement of each of schema.Files does"
		}
		if c.behind {
			cure = runMigrate
		}
		c.problem(object, cure, "is missing")
		return
	}
	if !live.isTable() {
		c.problem(object, "choose other outbox.Tables or drop it", "is a relation of kind %q, not a table", live.kind)
		return
	}
	switch {
	case !w.crashes:
		c.logged(object, "ALTER TABLE "+name+" SET LOGGED", live)
	case live.persistence == "p":
		c.problem(object, "ALTER TABLE "+name+" SET UNLOGGED", "is logged: a crash of the server, after which ids may mean other messages, would not be noticed")
	}
	if live.rowSecurity {
		c.warning(object, "give the role of the forwarder BYPASSRLS, or a policy that shows it all rows", "has row security, which may hide messages")
	}
	if w.vacuum {
		c.autovacuum(object, name, live)
	}
	c.columns(w, name, live)
	c.indexes(w, name, live)
}

func (c *inspection) columns(w wantedTable, name string, live relation) {
	known := map[string]bool{}
	for _, want := range w.columns {
		known[want.name] = true
		object := fmt.Sprintf("column %s.%s", name, want.name)
		got, ok := live.columns[want.name]
		if !ok {
			c.problem(object, c.columnCure(w), "is missing")
			continue
		}
		alter := "ALTER TABLE " + name + " ALTER COLUMN " + want.name
		if got.kind != want.kind {
			c.problem(object, alter+" TYPE "+want.kind, "has type %s, not %s", got.kind, want.kind)
		}
		if got.notNull && want.null {
			c.problem(object, alter+" DROP NOT NULL", "refuses NULL")
		} else if !got.notNull && !want.null {
			c.problem(object, alter+" SET NOT NULL", "may be NULL")
		}
		expression := strings.ReplaceAll(want.expression, "{seq}", c.relations[c.names.Render(w.seq)].text)
		if got.generated == want.generated && got.identity == want.identity && normalized(got.expression) == normalized(expression) {
			continue
		}
		switch {
		case want.generated:
			c.problem(object, c.columnCure(w), "is not generated as %s but by %q", expression, got.expression)
		case w.seq != "" && want.name == "id":
			c.problem(object, alter+" SET DEFAULT (CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('"+c.names.Render(w.seq)+"'::regclass) END)",
				"has the default %q, which does not assign the transaction id before it takes the row id from the sequence: "+
					"messages would be handled out of order, or late", got.expression)
		case want.expression == "" && !got.generated && !got.identity:
			// A default of the user's where we always give a value.
		default:
			c.problem(object, alter+" SET DEFAULT "+expression, "has the default %q, not %s", got.expression, expression)
		}
	}
	for column, got := range live.columns {
		if !known[column] && got.notNull && got.expression == "" && !got.identity {
			c.problem(fmt.Sprintf("column %s.%s", name, sqltext.Quote(column)), "make it nullable or give it a default", "must be given, but this library does not know it")
		}
	}
}

func (c *inspection) indexes(w wantedTable, name string, live relation) {
	if !live.hasIndex(wantedIndex{method: "btree", columns: w.unique}, true) {
		c.problem("table "+name, fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (%s)", name, w.unique), "has no valid, immediate primary key (%s)", w.unique)
	}
	for _, want := range w.indexes {
		index := c.names.Render(want.name)
		if live.hasIndex(want, false) || c.putOff[index] {
			continue
		}
		create := c.statement("CREATE INDEX CONCURRENTLY " + index + " ")
		if create == "" {
			create = strings.Replace(c.statement("CREATE INDEX "+index+" "), "INDEX", "INDEX CONCURRENTLY", 1)
		}
		found, cure := "is missing", create
		for _, l := range live.indexes {
			if sqltext.Quote(l.name) == index {
				cure = "drop it and create it again: " + create
				found = fmt.Sprintf("is %s (%s) WHERE %s", l.method, l.columns, l.predicate)
				if !l.valid {
					found = "is invalid, as a failed CREATE INDEX CONCURRENTLY leaves it"
				}
			}
		}
		if c.behind {
			cure = runMigrate
		}
		c.problem("index "+index, cure, "%s", found)
	}
}

func (c *inspection) autovacuum(object, name string, live relation) {
	off := false
	tuned := false
	for _, option := range strings.Split(live.options, ",") {
		key, value, _ := strings.Cut(option, "=")
		off = off || key == "autovacuum_enabled" && (value == "false" || value == "off" || value == "0" || value == "no")
		tuned = tuned || key == "autovacuum_vacuum_scale_factor"
	}
	if off {
		c.warning(object, "ALTER TABLE "+name+" RESET (autovacuum_enabled)", "has autovacuum switched off: reads slow down as dead rows pile up")
	} else if !tuned {
		c.warning(object, "ALTER TABLE "+name+" SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)",
			"has no autovacuum settings of its own: the defaults come too late for a queue")
	}
}

// statement finds a statement of the migrations by how it begins.
func (c *inspection) statement(prefix string) string {
	for _, m := range c.all {
		for _, s := range m.Statements() {
			if s = c.names.Render(s); strings.HasPrefix(s, prefix) {
				return s
			}
		}
	}
	return ""
}

func (c *inspection) cure(prefix string) string {
	if c.behind {
		return runMigrate
	}
	return "create it again: " + c.statement(prefix)
}

func (c *inspection) columnCure(w wantedTable) string {
	if c.behind {
		return runMigrate
	}
	return "compare the table with: " + c.statement(w.create(c.names.Render(w.name)))
}
