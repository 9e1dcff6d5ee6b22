package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// grants reports the privileges that roles lack. A forwarder needs nearly all of them, a publisher very few; privileges
// that only some parts need are warnings.
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
	roles := slices.Compact(slices.Sorted(slices.Values(c.cfg.Roles)))
	if len(roles) == 0 {
		roles = []string{c.role}
	}
	lacks, err := c.lacks(ctx, slices.Concat(roles, []string{c.role}), relations, privileges)
	if err != nil {
		return err
	}
	c.cannotReadMigrations = slices.Contains(lacks[[2]string{c.role, c.names.Render("{migrations}")}], "SELECT")
	defer func() { c.notForOutbox = false }()
	for _, role := range roles {
		outbox := lacks[[2]string{role, c.names.OutboxName()}]
		publishes := slices.Contains(outbox, "SELECT") && !slices.Contains(outbox, "INSERT")
		for _, n := range needs {
			c.notForOutbox = len(n.forwarder) == 0
			var must, may []string
			for _, p := range lacks[[2]string{role, n.relation}] {
				if slices.Contains(n.forwarder, p) && !publishes || publishes && slices.Contains(n.publisher, p) {
					must = append(must, p)
				} else {
					may = append(may, p)
				}
			}
			c.denied(n, role, must, false)
			c.denied(n, role, may, true)
		}
	}
	return nil
}

// lacks returns the privileges that roles lack, by role and relation.
func (c *inspection) lacks(
	ctx context.Context, roles, relations, privileges []string,
) (map[[2]string][]string, error) {
	lacks := map[[2]string][]string{}
	err := drive.Collect(ctx, c.q, func(rows drive.Rows) error {
		var kind, role, relation, privilege string
		err := rows.Scan(&kind, &role, &relation, &privilege)
		if kind == "SCHEMA" {
			c.denied(need{kind: kind, relation: sqltext.Quote(relation)}, role, []string{privilege}, false)
			return err
		}
		of := [2]string{role, relation}
		lacks[of] = append(lacks[of], privilege)
		return err
	}, sqltext.CheckPrivileges, relations, privileges, roles, c.names.OutboxName())
	if err != nil {
		return nil, fmt.Errorf("read privileges: %w", err)
	}
	return lacks, nil
}

func (c *inspection) denied(n need, role string, privileges []string, warning bool) {
	if len(privileges) > 0 {
		list := strings.Join(privileges, ", ")
		c.add(Problem{
			Object: strings.ToLower(n.kind) + " " + n.relation,
			Found:  fmt.Sprintf("denies %s to role %s", list, sqltext.Quote(role)),
			Cure:   fmt.Sprintf("GRANT %s ON %s %s TO %s", list, n.kind, n.relation, sqltext.Quote(role)),
			Role:   role, Warning: warning,
		})
	}
}
