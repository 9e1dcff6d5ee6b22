package queue

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// teller is how deaths are reported: the logger and the service.
type teller struct {
	service string // for observers
	logger  watermill.LoggerAdapter
}

// died reports a message that died outside a handler's transaction: a log line, and the observers, as for a message
// that failed without a call of its handler. In a transaction of the caller it waits for the commit.
func (s *Store) died(ctx context.Context, by teller, msg *Message, cause error) {
	outside := core.OutsideTx(context.WithoutCancel(ctx))
	tell := func(context.Context) {
		by.logger.Error("message died", cause, msg.fields().Add(watermill.LogFields{"failed_attempts": msg.Attempts}))
		_, ended := s.started(outside, by.service, msg)
		ended(observe.Dead, 0, cause)
	}
	if core.AfterCommit(ctx, tell) != nil { // no commit to wait for, or we would not learn of it
		tell(outside)
	}
}

// fields returns the log fields of a message.
func (m *Message) fields() watermill.LogFields {
	return watermill.LogFields{"topic": m.Topic, "source": m.Source, "message_id": m.MessageID}
}

// started reports an attempt to the observers, and returns a function that reports its end.
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
