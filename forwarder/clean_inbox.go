package forwarder

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/observe"
)

// cleanInbox deletes what is old from the inbox. The forwarder does it, so that no job has to be set up for it.
func (e *engine) cleanInbox(ctx context.Context) error {
	begun := time.Now()
	rows, err := clean.Inbox(ctx, e.db, e.cfg.InboxRetention, "", e.cfg.QueryTimeout)
	if ctx.Err() != nil {
		err = nil // cut off, not failed
	}
	e.obs.cleaned(observe.CleanEnd{Table: e.cfg.tables.Inbox, Rows: rows, Duration: time.Since(begun), Err: err})
	return err
}
