package middleware

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

func (o *errorHandler) decide(h *handling, n tally, err error) outbox.Decision {
	switch {
	case errors.Is(err, outbox.ErrPoison):
		return outbox.DeadLetter
	case errors.Is(err, outbox.ErrAlreadyProcessed):
		return outbox.Ack
	}
	if decision := o.classify(err); decision != outbox.Nack {
		return decision
	}
	if h.work != nil || h.delivery != nil { // they have their own limit
		if h.isLast() && !errors.Is(err, core.ErrLeaseLost) && !errors.Is(err, core.ErrNotBegun) {
			return outbox.DeadLetter
		}
		return outbox.Nack
	}
	if o.cfg.MaxAttempts > 0 && n.charged >= o.cfg.MaxAttempts && n.chargedFor >= o.cfg.MinDeadAge {
		return outbox.DeadLetter
	}
	return outbox.Nack
}

func (o *errorHandler) classify(err error) (decision outbox.Decision) {
	defer func() {
		if p := recover(); p != nil {
			// Cause: a bug of ErrorHandlerConfig.Classify.
			// Cure: as for Nack.
			o.logger.Error("panic in Classify: the message is retried", core.Panicked(p), nil)
			decision = outbox.Nack
		}
	}()
	return o.cfg.Classify(err)
}

// logPanic logs a panic that is not passed on because its message is dead or a duplicate: nothing else would show the
// stack.
func (o *errorHandler) logPanic(ctx context.Context, msg *message.Message, p any) {
	// Cause: a bug of the handler or a callback; see the field stack.
	// Cure: the message is dead, or was a duplicate.
	o.logger.Error("handler panicked: its message is acked: fix what the stack names", core.Panicked(p),
		fieldsOf(ctx, msg).Add(watermill.LogFields{"stack": string(debug.Stack())}))
}
