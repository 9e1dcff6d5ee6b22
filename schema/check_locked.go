package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

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
