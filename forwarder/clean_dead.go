package forwarder

import (
	"context"
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// discardDead discards messages of the outbox and the inbox that have been dead for longer than DeadRetention.
func (e *engine) discardDead(ctx context.Context) error {
	d := clean.Dead{
		Store: sqltext.Outbox, In: "outbox", Topics: e.cfg.Topics, Retention: e.cfg.DeadRetention,
		Timeout: e.cfg.QueryTimeout,
	}
	err := d.Discard(ctx, e.db, e.db, e.logger)
	d.Store, d.In, d.Topics = sqltext.Inbox, "inbox", nil
	err = errors.Join(err, d.Discard(ctx, e.db, e.db, e.logger))
	if ctx.Err() != nil {
		return nil // interrupted, not failed
	}
	return err
}
