package queue

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// reporter reports deaths to a logger and, under a service's name, to observers.
type reporter struct {
	service string
	logger  watermill.LoggerAdapter
}

// died logs a message that died outside a handler's transaction, and reports it to the observers as a failure without a
// call of its handler. In a transaction of the caller it does so after the commit.
func (s *Store) died(ctx context.Context, by reporter, msg *Message, cause error) {
	outside := core.OutsideTx(context.WithoutCancel(ctx))
	report := func(context.Context) {
		by.logger.Error("message died", cause, msg.fields().Add(watermill.LogFields{"failed_attempts": msg.Attempts}))
		_, ended := s.started(outside, by.service, msg)
		ended(observe.Dead, 0, cause)
	}
	if core.AfterCommit(ctx, report) != nil { // without a commit hook, report now or never
		report(outside)
	}
}

// fields returns the log fields of a message.
func (m *Message) fields() watermill.LogFields {
	return watermill.LogFields{"topic": m.Topic, "source": m.Source, "message_id": m.MessageID}
}

// started reports an attempt to the observers and returns a function that reports its result.
func (s *Store) started(
	ctx context.Context, service string, m *Message,
) (context.Context, func(observe.Outcome, int, error)) {
	if len(s.db.Observers()) == 0 {
		return ctx, func(observe.Outcome, int, error) {}
	}
	begun := time.Now()
	msg := toMessage(m.copy())
	ctx = core.TellStart(ctx, s.db, func(ctx context.Context, o observe.HandleObserver) context.Context {
		return o.HandleStart(ctx, observe.HandleStart{
			DB: s.db.Name(), Service: service, Handler: m.Topic, Topic: m.Topic, Message: msg,
		})
	})
	return ctx, func(outcome observe.Outcome, attempts int, err error) {
		core.Tell(s.db, func(o observe.HandleObserver) {
			o.HandleEnd(ctx, observe.HandleEnd{
				DB: s.db.Name(), Service: service, Handler: m.Topic, Topic: m.Topic, UUID: m.MessageID,
				Outcome: outcome, Attempts: attempts, Duration: time.Since(begun), Err: err,
			})
		})
	}
}
