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
		return "create it again, and before anything is written have it pass the ids that are used (SELECT setval('" +
			name + "', max(id)) FROM " + c.names.Render(strings.Replace(want.relation, "_id_seq", "", 1)) + "): " + made
	case want.relation == "{migrations}":
		return "restore it, or create it and record the migrations as the last statement of each of schema.Files does"
	}
	return "create it again: " + made
}

// definition returns the cure for a column that ALTER TABLE cannot fix.
func (c *inspection) definition(want fact) string {
	if c.behind {
		return runMigrate
	}
	return "compare the table with: " + c.statement(" TABLE "+c.names.Render(want.relation)+" ")
}
