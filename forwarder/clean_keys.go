package forwarder

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/observe"
)

// cleanKeys deletes what has expired of package idempotency, whose rows say when.
func (e *engine) cleanKeys(ctx context.Context) error {
	begun := time.Now()
	rows, err := clean.Keys(ctx, e.db, "", e.cfg.QueryTimeout)
	if ctx.Err() != nil {
		err = nil // cut off, not failed
	}
	e.obs.cleaned(observe.CleanEnd{Table: e.cfg.tables.Idempotency, Rows: rows, Duration: time.Since(begun), Err: err})
	return err
}
