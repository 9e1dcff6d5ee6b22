package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	createSchema = `CREATE SCHEMA IF NOT EXISTS `

	// Checked first, because createSchema needs the right to create schemas even if the schema exists.
	schemaExists = `SELECT to_regnamespace($1::text) IS NOT NULL`

	// relationsToBe returns which of the given relations exist in the schema where CREATE would create them. The
	// search path may lead to others of the same name.
	//
	// Arguments: names, schema ('' = the search path's).
	relationsToBe = `SELECT n.name FROM unnest($1::text[]) AS n(name)
 WHERE to_regclass(CASE WHEN $2::text = '' THEN quote_ident(current_schema()) || '.' ELSE '' END || n.name) IS NOT NULL`
)

// free returns an error if another program's table has a name that the migration needs.
func (r *run) free(ctx context.Context, q drive.Querier, m migrations.Migration) error {
	var ours []string
	for _, t := range tables {
		if strings.Contains(m.Text, " TABLE "+t.name+" (") {
			ours = append(ours, t.name)
		}
	}
	if len(ours) == 0 {
		return nil
	}
	there, err := relations(ctx, q, r.names, ours...)
	if err != nil {
		return err
	}
	for _, name := range ours {
		if slices.Contains(there, r.names.Render(name)) {
			return foreign(r.names, name)
		}
	}
	return nil
}

func foreign(names sqltext.Tables, placeholder string) error {
	return fmt.Errorf("a relation %s exists and was not made by Migrate: %s; if it is ours after all, "+
		"restore the rows of %s",
		names.Render(placeholder), anotherName(placeholder), names.Render("{migrations}"))
}

// anotherName returns the cure if a table of another program has the name of one of ours.
func anotherName(placeholder string) string {
	field, _, _ := strings.Cut(strings.Trim(placeholder, "{}"), "_") // outbox_life follows outbox
	field = strings.ToUpper(field[:1]) + field[1:]
	return fmt.Sprintf(`choose another name for ours, outbox.Tables{%s: "..."}`, field)
}

// relations returns which of our relations exist where CREATE would create them, by their rendered names.
func relations(ctx context.Context, q drive.Querier, names sqltext.Tables, placeholders ...string) ([]string, error) {
	rendered := make([]string, len(placeholders))
	for i, p := range placeholders {
		rendered[i] = names.Render(p)
	}
	var there []string
	err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		var name string
		err := rows.Scan(&name)
		there = append(there, name)
		return err
	}, relationsToBe, rendered, names.Schema)
	return there, err
}

func ensureSchema(ctx context.Context, q drive.Querier, name string) error {
	if name == "" {
		return nil
	}
	exists := false
	err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&exists) }, schemaExists,
		sqltext.Quote(name))
	if err != nil || exists {
		return err
	}
	_, err = q.Exec(ctx, createSchema+sqltext.Quote(name))
	return err
}
