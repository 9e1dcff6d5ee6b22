package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// soonAlive is alive with a short wait for locks, because here a lock is only a warning.
func (c *inspection) soonAlive(ctx context.Context, db database) error {
	err := db.Transact(ctx, func(q drive.Querier) error {
		c.q = q
		if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, sqltext.CheckPatience); err != nil {
			return err
		}
		return c.alive(ctx)
	})
	c.q = db
	if text.SQLState(err) != lockNotAvailable {
		return err
	}
	found, cure, err := holder(ctx, db, c.names)
	if err == nil {
		c.warning("table "+c.names.OutboxName(), cure, "could not be read: %s", found)
	}
	return err
}

// explainLocked adds the holder of a lock to an error about that lock.
func explainLocked(ctx context.Context, db database, names sqltext.Tables, err error) error {
	if text.SQLState(err) != lockNotAvailable {
		return err
	}
	found, cure, unknown := holder(ctx, db, names)
	if unknown != nil {
		return err
	}
	return fmt.Errorf("%s: %s: %w", found, cure, err)
}

// holder describes the session that has locked one of our tables, and the cure.
func holder(ctx context.Context, db database, names sqltext.Tables) (found, cure string, err error) {
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = names.Render(t.name)
	}
	found, cure = "a table was locked for a moment", "try again"
	err = drive.Collect(ctx, db, func(rows drive.Rows) error {
		var table, role, application string
		var pid int64
		if err := rows.Scan(&table, &pid, &role, &application); err != nil {
			return err
		}
		if pid == 0 {
			found, cure = "a prepared transaction has locked table "+table, "end it: outboxctl doctor names it"
			return nil
		}
		about := strings.TrimSpace(role + " " + application)
		if about != "" {
			about = " (" + about + ")"
		}
		found = fmt.Sprintf("session %d%s has locked table %s, or waits for that", pid, about, table)
		cure = fmt.Sprintf("wait if that is planned, or end it: SELECT pg_terminate_backend(%d)", pid)
		return nil
	}, sqltext.CheckHolder, all)
	return found, cure, err
}
