package schema

import (
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/migrations"
)

// tables lists this library's tables, with the privileges that every forwarder needs and the ones that only some
// parts need.
var tables = []struct {
	name              string // placeholder
	forwarder, others []string
}{
	{"{outbox}", []string{"SELECT", "UPDATE", "DELETE"}, []string{"INSERT"}},
	{"{lanes}", everything, nil},
	{"{forwarders}", everything, nil},
	{"{outbox_life}", []string{"SELECT", "INSERT"}, nil},
	{"{outbox_topics}", everything, nil},
	{"{inbox}", nil, everything},
	{"{audit}", nil, nil},
	{"{queue}", nil, everything},
	{"{idempotency}", nil, everything},
	{"{migrations}", []string{"SELECT"}, nil},
}

var everything = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}

// ofForwarder reports whether the outbox itself needs a table, or its sequence.
func ofForwarder(relation string) bool {
	relation = strings.Replace(relation, "_id_seq", "", 1)
	for _, t := range tables {
		if t.name == relation {
			return len(t.forwarder) > 0
		}
	}
	return false
}

// ofOutbox reports whether a migration concerns the outbox itself.
func ofOutbox(m migrations.Migration) bool {
	return slices.ContainsFunc(m.Statements(), func(s string) bool {
		for _, t := range tables {
			if len(t.forwarder) > 0 && strings.Contains(s, t.name) {
				return true
			}
		}
		return false
	})
}

const runMigrate = "run schema.Migrate with the same handle (outboxctl migrate up)"

// statement finds a statement of the migrations by a fragment of it.
func (c *inspection) statement(part string) string {
	for _, m := range c.all {
		for _, s := range m.Statements() {
			if s = c.names.Render(s); strings.HasPrefix(s, "CREATE ") && strings.Contains(s, part) {
				return s
			}
		}
	}
	return ""
}

// create returns the cure for a missing relation.
func (c *inspection) create(want fact) string {
	name := c.names.Render(want.relation)
	made := c.statement(" " + strings.ToUpper(want.kind) + " " + name + " ")
	switch {
	case c.behind:
		return runMigrate
	case want.kind == "sequence":
		return "create it again, " + grantAgain + ", and before anything is written set it past the used ids (SELECT " +
			"setval('" + name + "', max(id)) FROM " + c.names.Render(strings.Replace(want.relation, "_id_seq", "", 1)) +
			"): " + made
	case want.relation == "{migrations}":
		return "restore it, or create it and record the migrations as the last statement of each of schema.Files does"
	}
	return "create it again, then " + grantAgain + ": " + made
}

const grantAgain = "grant its use again, as schema.Roles or outboxctl migrate roles prints it"

// addColumn returns the cure for a missing column, or for one that ALTER COLUMN cannot fix.
func (c *inspection) addColumn(want fact, there bool) string {
	if c.behind {
		return runMigrate
	}
	column := want.name + " " + want.typ
	if want.state == "NOT NULL" {
		column += " NOT NULL"
	}
	expression, generated := strings.CutPrefix(c.names.Render(want.text), "GENERATED ")
	switch {
	case want.text == "IDENTITY":
		column += " GENERATED ALWAYS AS IDENTITY"
	case generated:
		column += " GENERATED ALWAYS AS (" + expression + ") STORED"
	case expression != "":
		column += " " + expression
	}
	table := "ALTER TABLE " + c.names.Render(want.relation)
	switch {
	case there:
		return "replace it, which rewrites the table and drops its indexes, then check again: " + table +
			" DROP COLUMN " + want.name + ", ADD COLUMN " + column
	case generated || want.name == "last_error":
		return "add it, then check again, because its indexes are lost too: " + table + " ADD COLUMN " + column
	}
	return "rename it back, or restore the table from a backup, or, if it is empty, add it and check again: " + table +
		" ADD COLUMN " + column
}
