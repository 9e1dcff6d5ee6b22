package observe

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Observer is a value that implements one or more of the interfaces of this package.
type Observer any

// TxObserver observes transactions of InTx and middleware.Tx, without savepoints.
type TxObserver interface {
	TxStart(ctx context.Context, start TxStart) context.Context
	// TxEnd is called also if the function panicked.
	TxEnd(ctx context.Context, end TxEnd)
}

// TxStart is a transaction before BEGIN.
type TxStart struct {
	DB string // name of the handle
}

// TxEnd is a transaction that ended.
type TxEnd struct {
	DB       string
	Duration time.Duration // from before BEGIN to the end
	// nil = committed, or nothing was written; outbox.ErrRolledBack, outbox.ErrCommitUnknown and others as InTx returns
	// them
	Err error
}

// WriteObserver observes messages that are written to the outbox.
type WriteObserver interface {
	// WriteStart may set metadata of the messages, which are not checked yet.
	WriteStart(ctx context.Context, start WriteStart) context.Context
	// WriteEnd is called when the messages were written, or refused: for those that wait for COMMIT, after the
	// transaction. A message that was written counts for nothing if the transaction is rolled back later.
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
	Messages  int           // how many
	Bytes     int           // sum of their payloads
	Duration  time.Duration // of the statements; zero for those that travelled with COMMIT
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
	DB, Service, Handler, Topic string // topic that it was consumed from
	Message                     *message.Message
	// Began is when the transaction of middleware.Batch began; zero for a message that is handled alone, from now on
	Began time.Time
}

// HandleEnd is the outcome of a delivery.
type HandleEnd struct {
	DB, Service, Handler, Topic, UUID string
	Outcome                           Outcome
	// how often the handler was called for this delivery; 0 = a stored message died without it
	Attempts int
	// Batch is the number of messages in the same transaction of middleware.Batch; 0 = it was handled alone
	Batch int
	// Duration of a batch is with one of its messages, and zero with the others
	Duration time.Duration
	Err      error // of the handler or a middleware, also when the message was acked
}

// Outcome is the outcome of a delivery. Values may be added.
type Outcome int

const (
	Failed     Outcome = iota // rolled back and nacked
	Processed                 // committed and acked
	Duplicate                 // handled before, or dead: nothing was done, acked
	Mismatch                  // told besides Duplicate: its content differs from that of the message that was processed
	RolledBack                // rolled back on request (outbox.SetRollbackOnly) and acked
	Dead                      // rolled back, a dead letter written, and acked
	Postponed                 // rolled back, and delivered again later without a charge (outbox.RetryAfter)
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
	Message          *message.Message // made anew each time
	// 1 until one fails by the message's fault: while a broker is unavailable none is charged
	Attempt    int
	EnqueuedAt time.Time // when it was written, on the database's clock
}

// PublishEnd is the result of a publish. Whether the message is dead is known only after its failure is written: see
// DeadObserver.
type PublishEnd struct {
	DB, Scope, Topic, UUID string
	ID                     int64 // of the row
	Attempt                int   // as in PublishStart
	EnqueuedAt             time.Time
	Age                    time.Duration // since it was written, on the database's clock
	Duration               time.Duration
	Err                    error
	// Verdict on Err is "retry", "unavailable", "permanent" or "unknown"; for "unknown" the circuit breaker decides. It
	// is empty if Err is nil, or if the forwarder stopped or lost the message's lane before a result; then nothing is
	// charged.
	Verdict string
}

// DeadObserver observes messages that a forwarder will not retry.
type DeadObserver interface {
	MessageDead(ctx context.Context, dead MessageDead)
}

// MessageDead is a message that is dead until an operator requeues it.
type MessageDead struct {
	DB, Scope, Topic, UUID string
	ID                     int64 // of the row
	Attempts               int
	Err                    error // of the last one
}

// TopicObserver observes topics that pause because they are unavailable, because too many of their publishes hang, or
// by an operator.
type TopicObserver interface {
	// TopicPaused is called again after each trial that failed.
	TopicPaused(ctx context.Context, paused TopicPaused)
	TopicResumed(ctx context.Context, resumed TopicResumed)
}

// TopicPaused is a topic that pauses, or stays paused after a failed probe.
type TopicPaused struct {
	DB, Scope, Topic string
	Failures         int           // in a row; of publishes that hang: how many
	Wait             time.Duration // until the next trial; 0 = until publishes return, or the operator says so
	ByOperator       bool
	Err              error // nil if an operator paused it
}

// TopicResumed is a topic that is no longer paused.
type TopicResumed struct {
	DB, Scope, Topic string
	Duration         time.Duration // since it was first told as paused
	ByOperator       bool          // as in TopicPaused: what else has paused it goes on
}

// PartitionObserver observes the partitions that a subscriber reads. A consumer of nats.Subscriber is partition 0.
type PartitionObserver interface {
	// PartitionState is called about once a second for each partition, and once more when it is taken away.
	PartitionState(ctx context.Context, state PartitionState)
}

// PartitionState is the state of a partition in the subscriber's memory.
type PartitionState struct {
	Group, Topic string
	Partition    int32
	Owned        bool // false: it was taken away, and the fields below are zero

	// Lag is the number of offsets between the oldest unfinished message and the end of the partition, as of the last
	// fetch, or of the last five seconds while the partition is paused.
	Lag     int64
	Ahead   int // messages that were read beyond the oldest one that is not done, done or not
	Pending int // messages in memory that are not done
	Running int // those of them that are delivered and not acked

	// BlockedKeys is the number of messages that failed and wait for another attempt, each blocking its key;
	// OldestBlocked is the time for which the first of them has been failing.
	BlockedKeys   int
	OldestBlocked time.Duration

	Paused    PauseReason // empty: it is read
	PausedFor time.Duration
}

// PauseReason is why a partition is not read. Values may be added.
type PauseReason string

const (
	PausedByBlockedKey PauseReason = "blocked key" // as much as may be is read beyond a message that keeps failing
	PausedByHandlers   PauseReason = "handlers"    // as much as may be is read, and the handlers are at work
	PausedByBytes      PauseReason = "bytes"       // what all partitions have in memory is as large as it may be
	// as PausedByHandlers or PausedByBytes, and no handler has returned for five minutes
	PausedByHungHandlers PauseReason = "hung handlers"
)

// EngineObserver observes the statements of a forwarder.
type EngineObserver interface {
	ReadEnd(ctx context.Context, end ReadEnd)
	SettleEnd(ctx context.Context, end SettleEnd)
	CleanEnd(ctx context.Context, end CleanEnd)
	LanesOwned(ctx context.Context, owned LanesOwned)
}

// ReadEnd is one read of the outbox.
type ReadEnd struct {
	DB, Scope string
	Rows      int // that were not in memory before
	Duration  time.Duration
	Err       error // it will be retried
}

// SettleEnd is one written batch of results.
type SettleEnd struct {
	DB, Scope          string
	Done, Failed, Dead int // Dead: of those that failed
	Duration           time.Duration
	Err                error // all of it will be retried, and the counts are 0
}

// CleanEnd is one round of clean-up of a table that deleted rows or failed.
type CleanEnd struct {
	DB, Table string
	Rows      int64
	Duration  time.Duration
	Err       error // it will be retried
}

// LanesOwned is the number of lanes, of the 64 of its scope, that a forwarder owns, after a change.
type LanesOwned struct {
	DB, Scope string
	Lanes     int
}
