// Package meter defines the observers of transactions, forwarders' statements and subscribers' partitions. Only
// observe/prom uses them; package observe has the interfaces that users implement.
package meter

import (
	"context"
	"time"
)

// TxObserver observes transactions of InTx and middleware.Tx, without savepoints.
type TxObserver interface {
	TxStart(ctx context.Context, start TxStart) context.Context
	// TxEnd is also called if the function panicked.
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
	// nil = committed, or nothing was written; otherwise outbox.ErrRolledBack, outbox.ErrCommitUnknown or another error of
	// InTx
	Err error
}

// PartitionObserver observes the partitions that a subscriber reads. A consumer of nats.Subscriber is partition 0.
type PartitionObserver interface {
	// PartitionState is called about once a second for each partition, and once more when it is revoked.
	PartitionState(ctx context.Context, state PartitionState)
}

// PartitionState is the state of a partition in the subscriber's memory.
type PartitionState struct {
	Group, Topic string
	Partition    int32
	Owned        bool // false if it was revoked: the fields below are zero

	// Lag is the number of offsets between the oldest unfinished message and the end of the partition, as of the last
	// fetch, or at most 5 s ago while the partition is paused.
	Lag     int64
	Ahead   int // messages read beyond the oldest unfinished one, finished or not
	Pending int // unfinished messages in memory
	Running int // delivered and not acked

	// BlockedKeys is the number of messages that failed and wait for another attempt, each blocking its key; OldestBlocked
	// is how long the first of them has been failing.
	BlockedKeys   int
	OldestBlocked time.Duration

	Paused    PauseReason // empty = it is being read
	PausedFor time.Duration
}

// PauseReason is the reason why a partition is not read. More may be added.
type PauseReason string

const (
	PausedByBlockedKey PauseReason = "blocked key" // a message keeps failing, and MaxAhead or MaxBytes is read beyond it
	PausedByHandlers   PauseReason = "handlers"    // MaxAhead is read, and the handlers are busy
	PausedByBytes      PauseReason = "bytes"       // all partitions together have MaxBytes in memory
	// messages wait, and no handler has returned for five minutes
	PausedByHungHandlers PauseReason = "hung handlers"
)

// ForwarderObserver observes the statements of a forwarder and the number of its lanes.
type ForwarderObserver interface {
	ReadEnd(ctx context.Context, end ReadEnd)
	SettleEnd(ctx context.Context, end SettleEnd)
	CleanEnd(ctx context.Context, end CleanEnd)
	LanesOwned(ctx context.Context, owned LanesOwned)
}

// ReadEnd is one read of the outbox.
type ReadEnd struct {
	DB, Scope string
	Rows      int // not in memory before the read
	Duration  time.Duration
	Err       error // it will be retried
}

// SettleEnd is one written batch of results.
type SettleEnd struct {
	DB, Scope          string
	Done, Failed, Dead int // also counted in Failed
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
