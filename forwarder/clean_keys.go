package forwarder

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/observe"
)

// cleanKeys deletes expired rows of package idempotency. Each row has its expiry time.
func (e *engine) cleanKeys(ctx context.Context) error {
	begun := time.Now()
	rows, err := clean.Keys(ctx, e.db, "", e.cfg.QueryTimeout)
	if ctx.Err() != nil {
		err = nil // interrupted, not failed
	}
	e.obs.cleaned(observe.CleanEnd{Table: e.cfg.tables.Idempotency, Rows: rows, Duration: time.Since(begun), Err: err})
	return err
}
