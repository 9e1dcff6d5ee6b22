package observe

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Observer is a value that implements one or more of the interfaces of this package.
type Observer any

// TxObserver is told of transactions that InTx begins, those of middleware.Tx among them. Savepoints do not count.
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

// WriteObserver is told of messages that are written to the outbox.
type WriteObserver interface {
	// WriteStart may set metadata of the messages, which are not checked yet.
	WriteStart(ctx context.Context, start WriteStart) context.Context
	// WriteEnd is called when the messages were written, or refused: for those that wait for COMMIT, after the
	// transaction. A message that was written counts for nothing if the transaction is rolled back later.
	WriteEnd(ctx context.Context, end WriteEnd)
}

// WriteStart is a call of Publish, or what a handler returned.
type WriteStart struct {
	DB, Topic string
	Messages  []*message.Message
}

// WriteEnd is how it went.
type WriteEnd struct {
	DB, Topic string
	Messages  int           // how many
	Bytes     int           // sum of their payloads
	Duration  time.Duration // of the statements; zero for those that travelled with COMMIT
	Err       error         // as Publish returns it
}

// HandleObserver is told of messages that are handled.
type HandleObserver interface {
	HandleStart(ctx context.Context, start HandleStart) context.Context
	// HandleEnd is called once for each delivery with its final outcome, and once more for a Mismatch.
	HandleEnd(ctx context.Context, end HandleEnd)
}

// HandleStart is a message that was delivered.
type HandleStart struct {
	DB, Service, Handler, Topic string // topic that it was consumed from
	Message                     *message.Message
}

// HandleEnd is what became of it.
type HandleEnd struct {
	DB, Service, Handler, Topic, UUID string
	Outcome                           Outcome
	// how often the handler was called for this delivery; 0 = a stored message died without it
	Attempts int
	Duration time.Duration
	Err      error // of the handler or a middleware, also when the message was acked
}

// Outcome says what became of a message. Values may be added.
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

// PublishObserver is told of messages that a forwarder.Forwarder publishes, or a forwarder.Subscriber delivers.
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
	Attempt int
	// it was handed over before: Attempt is above 1, or this forwarder has, to a broker that was unavailable
	Again      bool
	EnqueuedAt time.Time // when it was written, on the database's clock
}

// PublishEnd is how it went. That a message is dead is known only when its failure is written: see DeadObserver.
type PublishEnd struct {
	DB, Scope, Topic, UUID string
	ID                     int64 // of the row
	Attempt                int   // as in PublishStart
	EnqueuedAt             time.Time
	Age                    time.Duration // since it was written, on the database's clock
	Duration               time.Duration
	Err                    error
	// Verdict about Err is "retry", "unavailable", "permanent" or "unknown": then what becomes of other messages decides
	// whether it is charged. It is empty if Err is nil, and if the forwarder stopped or gave the message's lane away
	// before there was an answer: then nothing is charged.
	Verdict string
}

// DeadObserver is told of messages that a forwarder will not retry.
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

// TopicObserver is told of topics that pause because their broker or the topic is unavailable, because too many of
// their publishes hang, or because an operator said so.
type TopicObserver interface {
	// TopicPaused is called again after each trial that failed.
	TopicPaused(ctx context.Context, paused TopicPaused)
	TopicResumed(ctx context.Context, resumed TopicResumed)
}

// TopicPaused is a topic that pauses, or goes on doing so after a trial.
type TopicPaused struct {
	DB, Scope, Topic string
	Failures         int           // in a row; of publishes that hang: how many
	Wait             time.Duration // until the next trial; 0 = until publishes return, or the operator says so
	ByOperator       bool
	Err              error // nil if an operator paused it
}

// TopicResumed is a topic that pauses no more.
type TopicResumed struct {
	DB, Scope, Topic string
	Duration         time.Duration // since it was first told as paused
	ByOperator       bool          // as in TopicPaused: what else has paused it goes on
}

// PartitionObserver is told of the partitions that a subscriber of a broker reads: kafka.Subscriber, and
// nats.Subscriber, to which a consumer is a partition with number 0.
type PartitionObserver interface {
	// PartitionState is called about once a second for each partition, and once more when it is taken away.
	PartitionState(ctx context.Context, state PartitionState)
}

// PartitionState is a partition of a topic, as the subscriber has it in memory.
type PartitionState struct {
	Group, Topic string
	Partition    int32
	Owned        bool // false: it was taken away, and the fields below are zero

	// Lag is how many offsets lie between the oldest message that is not done and the end of the partition, as of the last
	// fetch, or as Kafka says every five seconds while the partition is paused.
	Lag     int64
	Ahead   int // messages that were read beyond the oldest one that is not done, done or not
	Pending int // messages in memory that are not done
	Running int // those of them that are delivered and not acked

	// BlockedKeys is how many messages failed and wait for another attempt, each with all that is behind it of its key;
	// OldestBlocked is for how long the first of them has been failing.
	BlockedKeys   int
	OldestBlocked time.Duration

	Paused    PauseReason // empty: it is read
	PausedFor time.Duration
}

// PauseReason says why a partition is not read on. Values may be added.
type PauseReason string

const (
	PausedByBlockedKey PauseReason = "blocked key" // as much as may be is read beyond a message that keeps failing
	PausedByHandlers   PauseReason = "handlers"    // as much as may be is read, and the handlers are at work
	PausedByBytes      PauseReason = "bytes"       // what all partitions have in memory is as large as it may be
	// as PausedByHandlers or PausedByBytes, and no handler has returned for five minutes
	PausedByHungHandlers PauseReason = "hung handlers"
)

// EngineObserver is told of the statements of a forwarder.
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

// SettleEnd is one batch of results that was written.
type SettleEnd struct {
	DB, Scope          string
	Done, Failed, Dead int // Dead: of those that failed
	Duration           time.Duration
	Err                error // all of it will be retried, and the counts are 0
}

// CleanEnd is one round of clean-up of one table that found something to delete, or failed.
type CleanEnd struct {
	DB, Table string
	Rows      int64
	Duration  time.Duration
	Err       error // it will be retried
}

// LanesOwned says how many of the 64 lanes of its scope a forwarder owns, after that changed.
type LanesOwned struct {
	DB, Scope string
	Lanes     int
}
