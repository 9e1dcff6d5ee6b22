package admin

import (
	"context"
	"errors"
	"fmt"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

// checkSchema checks the server, the tables, their indexes and their settings.
func (e *doctorRun) checkSchema(ctx context.Context) error {
	ctx, cancel := e.bound(ctx)
	defer cancel()
	problems, err := schema.Check(ctx, (*outbox.DB)(e.db), schema.CheckConfig{})
	if err != nil && !errors.Is(err, schema.ErrSchemaChanged) {
		return err
	}
	for _, p := range problems {
		if p.Role != "" {
			continue // an operator need not have a forwarder's grants
		}
		s := Critical
		if p.Warning {
			s = Warning
		} else {
			e.damaged = true
		}
		e.find("schema", s, p.Object+" "+p.Found, p.Cure)
		e.over = e.over || p.Object == "server"
	}
	return nil
}

// checkPrivileges reports privileges that writers and readers lack. grants does so for forwarders.
func (e *doctorRun) checkPrivileges(ctx context.Context) error {
	var sees bool
	err := e.rows(ctx, []any{&e.role, &sees, &e.database}, func() {
		if !sees {
			e.find("privileges", Info, fmt.Sprintf("role %s may not see the sessions of other roles", sqltext.Quote(e.role)),
				"to check for long transactions and locks: GRANT pg_read_all_stats TO "+sqltext.Quote(e.role))
		}
	}, sqltext.DoctorRole)
	if err != nil {
		return err
	}
	var writer string
	return e.rows(ctx, []any{&writer}, func() {
		sequence := e.db.Render("{outbox_id_seq}")
		e.find("privileges", Critical,
			fmt.Sprintf("role %s may write messages, but lacks USAGE on sequence %s", sqltext.Quote(writer), sequence),
			fmt.Sprintf("as the owner of the tables: GRANT USAGE ON SEQUENCE %s TO %s", sequence, sqltext.Quote(writer)))
	}, sqltext.DoctorWriters)
}
