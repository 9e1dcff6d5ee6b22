package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// started reports a delivery, and when its batch began, to the observers. ErrorHandler calls it, or Tx without
// ErrorHandler.
func started(
	ctx context.Context, db *core.DB, service string, msg *message.Message, began time.Time,
) context.Context {
	return core.TellStart(ctx, db, func(ctx context.Context, o observe.HandleObserver) context.Context {
		return o.HandleStart(ctx, observe.HandleStart{
			DB: db.Name(), Service: service, Message: msg,
			Handler: message.HandlerNameFromCtx(ctx), Topic: message.SubscribeTopicFromCtx(ctx), Began: began,
		})
	})
}

// ended reports the outcome of a message that was handled alone to the observers.
func ended(
	ctx context.Context, db *core.DB, service string, msg *message.Message, h *handling, outcome observe.Outcome,
	err error,
) {
	tellEnd(ctx, db, observe.HandleEnd{
		Service: service, UUID: msg.UUID, Outcome: outcome, Attempts: max(h.attempts, 1), Duration: time.Since(h.started),
		Err: err,
	})
}

func tellEnd(ctx context.Context, db *core.DB, end observe.HandleEnd) {
	end.DB, end.Handler, end.Topic = db.Name(), message.HandlerNameFromCtx(ctx), message.SubscribeTopicFromCtx(ctx)
	core.Tell(db, func(o observe.HandleObserver) { o.HandleEnd(ctx, end) })
}
