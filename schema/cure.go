package schema

import "strings"

const runMigrate = "run schema.Migrate with the same handle (outboxctl migrate up)"

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
