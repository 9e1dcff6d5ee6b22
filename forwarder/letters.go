package forwarder

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// prepareSettling returns an error if dead letters are to be written that the role of the connection may not write:
// each death would fail, again and again. Where histories cannot be written, failures are settled without.
func (e *engine) prepareSettling(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	mayWrite, mayNote := false, false
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error { return rows.Scan(&mayWrite, &mayNote) }, e.sql.mayWrite)
	if err == nil && !mayWrite && e.cfg.DeadLetterTopic != "" {
		err = fmt.Errorf("forwarder: DeadLetterTopic is set and the role may not insert into %s: "+
			"grant it what schema.Roles grants a writer",
			e.cfg.tables.OutboxName())
	}
	if !mayNote {
		e.sql.settleFailed = strings.Replace(e.sql.settleFailed, e.cfg.tables.Render(sqltext.NoteAttempt), "", 1)
	}
	return err
}
