package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// migrator describes the migrating role and its target: role, database, schema of the tables, whether the schema
// exists, and whether the role may use it and create tables in it.
//
// Arguments: schema (empty = the search path's).
const migrator = `SELECT current_user::text, current_database()::text, w.name, n.oid IS NOT NULL,
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE'), false)
  FROM (SELECT coalesce(nullif($1::text, ''), current_schema()::text, 'public') AS name) w
  LEFT JOIN pg_namespace n ON n.nspname = w.name`

// explainMigrate is Explain for the role that creates the tables.
func explainMigrate(ctx context.Context, q drive.Querier, names sqltext.Tables, what string, err error) error {
	if state := text.SQLState(err); state != text.InsufficientPrivilege && state != "3F000" {
		return err
	}
	var role, database, schema string
	var exists, may bool
	failed := drive.Collect(ctx, q, func(rows drive.Rows) error {
		return rows.Scan(&role, &database, &schema, &exists, &may)
	}, migrator, names.Schema)
	switch {
	case failed != nil:
		return err
	case !exists:
		return fmt.Errorf("%w (GRANT CREATE ON DATABASE %s TO %s, or create the schema: CREATE SCHEMA %s AUTHORIZATION %s)",
			err, sqltext.Quote(database), sqltext.Quote(role), sqltext.Quote(schema), sqltext.Quote(role))
	case !may:
		return fmt.Errorf("%w (GRANT USAGE, CREATE ON SCHEMA %s TO %s)", err, sqltext.Quote(schema), sqltext.Quote(role))
	}
	return fmt.Errorf("%w (%s as the role that owns the tables, not as %s)", err, what, sqltext.Quote(role))
}

// need lists the privileges that the parts need on a relation.
type need struct {
	kind, relation               string
	forwarder, publisher, others []string
}

// Privileges lists the grants that a role lacks for the work of a forwarder, or of a publisher if it may insert
// messages but not read them. Grants that only some parts need are warnings. The role "" is the connection's; a role
// that does not exist lacks nothing. It returns outbox.ErrNoDB, or an error of the database.
func Privileges(ctx context.Context, db *outbox.DB, role string) ([]Problem, error) {
	own := (*core.DB)(db)
	if err := own.Check(); err != nil {
		return nil, err
	}
	c := inspection{q: own, names: own.Tables(), optional: map[int]bool{}}
	err := c.whoAsks(ctx)
	if role != "" {
		c.role, c.found, c.stop = role, nil, false
	}
	if err == nil && !c.stop {
		err = c.grants(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("privileges for %s: %w", c.names.OutboxName(), err)
	}
	return c.found, nil
}

// grants reports the privileges that the role lacks. A forwarder needs nearly all of them, a publisher very few;
// privileges that only some parts need are warnings.
func (c *inspection) grants(ctx context.Context) error {
	var needs []need
	for _, t := range tables {
		switch t.name {
		case "{outbox}":
			needs = append(needs, need{
				kind: "SEQUENCE", relation: c.names.Render("{outbox_id_seq}"),
				forwarder: []string{"SELECT"}, publisher: []string{"USAGE"},
			})
		case "{queue}":
			needs = append(needs, need{
				kind: "SEQUENCE", relation: c.names.Render("{queue_id_seq}"), others: []string{"SELECT", "USAGE"},
			})
		}
		needs = append(needs, need{kind: "TABLE", relation: c.names.Render(t.name), forwarder: t.forwarder, others: t.others})
	}
	var relations, privileges []string
	for _, n := range needs {
		for _, p := range slices.Concat(n.forwarder, n.publisher, n.others) {
			relations, privileges = append(relations, n.relation), append(privileges, p)
		}
	}
	lacks := map[string][]string{}
	err := drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var relation, privilege string
		err := rows.Scan(&relation, &privilege)
		lacks[relation] = append(lacks[relation], privilege)
		return err
	}, sqltext.CheckPrivileges, relations, privileges, c.role)
	if err != nil {
		return fmt.Errorf("read privileges: %w", err)
	}
	outbox := lacks[c.names.OutboxName()]
	publishes := slices.Contains(outbox, "SELECT") && !slices.Contains(outbox, "INSERT")
	c.cannotReadMigrations = slices.Contains(lacks[c.names.Render("{migrations}")], "SELECT")
	for _, n := range needs {
		var must, may []string
		for _, p := range lacks[n.relation] {
			if slices.Contains(n.forwarder, p) && !publishes || publishes && slices.Contains(n.publisher, p) {
				must = append(must, p)
			} else {
				may = append(may, p)
			}
		}
		c.denied(n, must, c.denial)
		c.denied(n, may, c.warning)
	}
	return nil
}

func (c *inspection) denied(n need, privileges []string, report func(object, cure, found string, args ...any)) {
	if len(privileges) > 0 {
		list := strings.Join(privileges, ", ")
		report(strings.ToLower(n.kind)+" "+n.relation,
			fmt.Sprintf("GRANT %s ON %s %s TO %s", list, n.kind, n.relation, sqltext.Quote(c.role)),
			"denies %s to role %s", list, sqltext.Quote(c.role))
	}
}
