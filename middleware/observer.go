package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// started reports a delivery to the observers. Outcomes calls it, or Tx if there is no Outcomes.
func started(ctx context.Context, db *core.DB, service string, msg *message.Message) context.Context {
	return core.TellStart(ctx, db, func(ctx context.Context, o observe.HandleObserver) context.Context {
		return o.HandleStart(ctx, observe.HandleStart{
			DB: db.Name(), Service: service, Message: msg,
			Handler: message.HandlerNameFromCtx(ctx), Topic: message.SubscribeTopicFromCtx(ctx),
		})
	})
}

// ended reports the outcome to the observers.
func ended(
	ctx context.Context, db *core.DB, service string, msg *message.Message, h *handling, outcome observe.Outcome,
	err error,
) {
	core.Tell(db, func(o observe.HandleObserver) {
		o.HandleEnd(ctx, observe.HandleEnd{
			DB: db.Name(), Service: service, UUID: msg.UUID,
			Handler: message.HandlerNameFromCtx(ctx), Topic: message.SubscribeTopicFromCtx(ctx),
			Outcome: outcome, Attempts: max(h.attempts, 1), Duration: time.Since(h.started), Err: err,
		})
	})
}
