package schema

import (
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

func (c *inspection) sequence(w wantedTable) {
	name := c.names.Render(w.seq)
	object := "sequence " + name
	seq, ok := c.sequences[name]
	if !ok {
		cure := runMigrate
		if !c.behind {
			cure = fmt.Sprintf("create it again, and before anything is written have it pass the ids that are used "+
				"(SELECT setval('%s', max(id)) FROM %s): ", name, c.names.Render(w.name)) +
				c.statement("CREATE SEQUENCE "+name+" ")
		}
		c.problem(object, cure, "is missing")
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
	if r := c.relations[c.names.Render(w.name)]; r.persistence == "p" || r.kind == "p" { // else one statement cures both
		c.logged(object, alter("SET LOGGED"), c.relations[name])
	}
}

func (c *inspection) logged(object, cure string, r relation) {
	switch {
	case r.persistence == "t":
		c.problem(object, "drop it", "is temporary and hides the real one")
	case r.kind == "p": // it has no rows itself, and PostgreSQL 18 has no unlogged one
	case r.persistence == "u":
		c.problem(object, cure, unlogged)
	}
}

const unlogged = "is unlogged: a crash of the server would empty it"

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
		c.problem(object, "ALTER TABLE "+name+" SET UNLOGGED",
			"is logged: a crash of the server, after which ids may mean other messages, would not be noticed")
	}
	if live.rowSecurity {
		c.warning(object, "give the role of the forwarder BYPASSRLS, or a policy that shows it all rows",
			"has row security, which may hide messages")
	}
	switch {
	case w.vacuum && len(c.partitions) > 0 && w.name == "{outbox}":
		for _, p := range c.partitions {
			if p.Logging != "" {
				c.problem("table "+p.SQL, p.Logging, unlogged)
			}
			if !p.Split { // else it takes no such settings
				c.autovacuum("table "+p.SQL, p.SQL, p.Options)
			}
		}
	case w.vacuum:
		c.autovacuum(object, name, strings.Split(live.options, ","))
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
			beside := c.beside
			c.beside = beside || want.spare
			c.problem(object, c.columnCure(w), "is missing")
			c.beside = beside
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
		if got.generated == want.generated && got.identity == want.identity &&
			normalized(got.expression) == normalized(expression) {
			continue
		}
		switch {
		case want.generated:
			c.problem(object, c.columnCure(w), "is not generated as %s but by %q", expression, got.expression)
		case w.seq != "" && want.name == "id":
			c.problem(object, alter+" SET DEFAULT (CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('"+
				c.names.Render(w.seq)+"'::regclass) END)",
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
			c.problem(fmt.Sprintf("column %s.%s", name, sqltext.Quote(column)), "make it nullable or give it a default",
				"must be given, but this library does not know it")
		}
	}
}

func (c *inspection) indexes(w wantedTable, name string, live relation) {
	if !live.hasIndex(wantedIndex{method: "btree", columns: w.unique}, true) {
		c.problem("table "+name, fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (%s)", name, w.unique),
			"has no valid, immediate primary key (%s)", w.unique)
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
				cure = "drop it, then create it again, each by itself and in no transaction: DROP INDEX CONCURRENTLY " +
					c.names.InSchema(want.name) + "; " + create
				found = fmt.Sprintf("is %s (%s) WHERE %s", l.method, l.columns, l.predicate)
				switch {
				case !l.valid && l.built: // to drop it would end the build, after a wait that stops all writers
					found, cure = "is being built, or a build of it failed before the one that runs",
						"wait for that one (pg_stat_progress_create_index), then look again"
				case !l.valid:
					found = "is invalid, as a failed CREATE INDEX CONCURRENTLY leaves it"
				}
			}
		}
		if live.kind == "p" { // whose indexes are not built or dropped concurrently
			cure = strings.ReplaceAll(cure, " CONCURRENTLY", "")
		}
		if c.behind {
			cure = runMigrate
		}
		c.problem("index "+index, cure, "%s", found)
	}
}

func (c *inspection) autovacuum(object, name string, options []string) {
	off := false
	tuned := false
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		off = off || key == "autovacuum_enabled" && (value == "false" || value == "off" || value == "0" || value == "no")
		tuned = tuned || key == "autovacuum_vacuum_scale_factor"
	}
	if off {
		c.warning(object, "ALTER TABLE "+name+" RESET (autovacuum_enabled)",
			"has autovacuum switched off: reads slow down as dead rows pile up")
	} else if !tuned {
		c.warning(object, "ALTER TABLE "+name+
			" SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)",
			"has no autovacuum settings of its own: the defaults come too late for a queue")
	}
}
