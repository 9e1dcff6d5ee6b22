package observe

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Observer is a value that implements one or more of the interfaces of this package.
type Observer any

// WriteObserver observes messages that are written to the outbox.
type WriteObserver interface {
	// WriteStart may set metadata of the messages, which are not checked yet.
	WriteStart(ctx context.Context, start WriteStart) context.Context
	// WriteEnd is called when the messages were written or refused; for messages that wait for COMMIT, after the
	// transaction. Written messages may still be rolled back.
	WriteEnd(ctx context.Context, end WriteEnd)
}

// WriteStart is a call of Publish, or the messages that a handler returned.
type WriteStart struct {
	DB, Topic string
	Messages  []*message.Message
}

// WriteEnd is the result of a write.
type WriteEnd struct {
	DB, Topic string
	Messages  int           // number of messages
	Bytes     int           // sum of their payloads
	Duration  time.Duration // of the statements; zero for messages sent with COMMIT
	Err       error         // as Publish returns it
}

// HandleObserver observes messages that are handled.
type HandleObserver interface {
	HandleStart(ctx context.Context, start HandleStart) context.Context
	// HandleEnd is called once for each delivery with its final outcome, and once more for a Mismatch.
	HandleEnd(ctx context.Context, end HandleEnd)
}

// HandleStart is a message that was delivered.
type HandleStart struct {
	DB, Service, Handler, Topic string // Topic that the message was consumed from
	Message                     *message.Message
	// Began is when the transaction of middleware.Batch began; zero for a message that is handled alone and begins now
	Began time.Time
}

// HandleEnd is the outcome of a delivery.
type HandleEnd struct {
	DB, Service, Handler, Topic, UUID string
	Outcome                           Outcome
	// number of calls of the handler for this delivery; 0 = a stored message died without a call
	Attempts int
	// Batch is the number of messages in the same transaction of middleware.Batch; 0 = it was handled alone
	Batch int
	// Duration of a batch is reported for one of its messages, and zero for the others
	Duration time.Duration
	Err      error // of the handler or a middleware, also when the message was acked
}

// Outcome is the outcome of a delivery. More values may be added.
type Outcome int

const (
	Failed     Outcome = iota // rolled back and nacked
	Processed                 // committed and acked
	Duplicate                 // handled before, or dead: nothing was done, acked
	Mismatch                  // reported besides Duplicate: its content differs from that of the processed message
	RolledBack                // rolled back on request (outbox.SetRollbackOnly) and acked
	Dead                      // rolled back, a dead letter written, and acked
	Postponed                 // rolled back, and delivered again later, no attempt counted (outbox.RetryAfter)
)

// String returns the outcome in lower case, for logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Failed:
		return "failed"
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	case Mismatch:
		return "mismatch"
	case RolledBack:
		return "rolled back"
	case Dead:
		return "dead"
	case Postponed:
		return "postponed"
	}
	return "unknown"
}

// PublishObserver observes messages that a forwarder.Forwarder publishes or a forwarder.Subscriber delivers.
type PublishObserver interface {
	// PublishStart is called before the message is handed over. It may set metadata of the message, and the context that
	// it returns becomes the message's.
	PublishStart(ctx context.Context, start PublishStart) context.Context
	// PublishEnd is called when the publisher has returned, which may be long after PublishTimeout.
	PublishEnd(ctx context.Context, end PublishEnd)
}

// PublishStart is a message that is about to be published.
type PublishStart struct {
	DB, Scope, Topic string
	Message          *message.Message // a new one for each attempt
	// 1 until an attempt fails through the message's fault: none is counted while a broker is unavailable
	Attempt    int
	Probe      bool      // it tests whether a broker that was unavailable works again
	EnqueuedAt time.Time // when it was written, on the database's clock
}

// PublishEnd is the result of a publish. Whether the message is dead is known only after its failure is written: see
// DeadObserver.
type PublishEnd struct {
	DB, Scope, Topic, UUID string
	ID                     int64         // of the row
	Attempt                int           // as in PublishStart
	Age                    time.Duration // since INSERT, on the database's clock
	Duration               time.Duration
	Err                    error
	// Verdict on Err is "retry", "unavailable", "permanent" or "unknown"; for "unknown" the circuit breaker decides. It
	// is empty if Err is nil, or if the forwarder stopped or lost the message's lane before a result; then no
	// attempt is counted.
	Verdict string
}

// DeadObserver observes messages that a forwarder will not retry.
type DeadObserver interface {
	MessageDead(ctx context.Context, dead MessageDead)
}

// MessageDead is a message that stays dead until an operator requeues it.
type MessageDead struct {
	DB, Scope, Topic, UUID string
	ID                     int64 // of the row
	Attempts               int
	Err                    error // of the last attempt
}

// TopicObserver observes topics that pause because they are unavailable, because too many of their publishes hang, or
// by an operator.
type TopicObserver interface {
	// TopicPaused is called again after each failed probe.
	TopicPaused(ctx context.Context, paused TopicPaused)
	TopicResumed(ctx context.Context, resumed TopicResumed)
}

// TopicPaused is a topic that pauses, or stays paused after a failed probe.
type TopicPaused struct {
	DB, Scope, Topic string
	Failures         int           // in a row; for publishes that hang: their number
	Wait             time.Duration // until the next probe; 0 = until publishes return, or until an operator resumes it
	ByOperator       bool
	Err              error // nil if an operator paused it
}

// TopicResumed is a topic that is no longer paused.
type TopicResumed struct {
	DB, Scope, Topic string
	Duration         time.Duration // since the first TopicPaused
	ByOperator       bool          // as in TopicPaused: other pauses of the topic continue
}
