package forwarder

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/observe"
)

// cleanInbox deletes old rows of the inbox. The forwarder does this, so that users need no job for it.
func (e *engine) cleanInbox(ctx context.Context) error {
	begun := time.Now()
	rows, err := clean.Inbox(ctx, e.db, e.cfg.InboxRetention, "", e.cfg.QueryTimeout)
	if ctx.Err() != nil {
		err = nil // interrupted, not failed
	}
	e.obs.cleaned(observe.CleanEnd{Table: e.cfg.tables.Inbox, Rows: rows, Duration: time.Since(begun), Err: err})
	return err
}
