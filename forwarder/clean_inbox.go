package forwarder

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// cleanInbox deletes what is old from the inbox. Who drains the outbox does it, so that nobody has to remember it.
func (e *engine) cleanInbox(ctx context.Context) error {
	db := e.db
	begun := time.Now()
	rows, err := clean.Inbox(ctx, db, e.cfg.InboxRetention, e.cfg.QueryTimeout)
	if ctx.Err() != nil {
		err = nil // cut off, not failed
	}
	if rows > 0 || err != nil {
		end := observe.CleanEnd{DB: db.Name(), Table: db.Tables().Inbox, Rows: rows, Duration: time.Since(begun), Err: err}
		e.reports.post(func() { core.Tell(db, func(o observe.EngineObserver) { o.CleanEnd(ctx, end) }) })
	}
	return err
}
