package outbox

import (
	"context"
	"time"
)

// TxObserver is told of transactions. It must be safe for concurrent use and must not block.
type TxObserver interface {
	// TxEnded is called once for each transaction that InTx began, savepoints not included, also if the
	// function panicked.
	TxEnded(ctx context.Context, end TxEnd)
}

// TxEnd says how a transaction ended. Fields may be added.
type TxEnd struct {
	DB       string        // name of the database
	Duration time.Duration // from BEGIN to the end
	Err      error         // nil = committed; ErrRolledBack, ErrCommitUnknown and others as InTx returns them
}

// WriteObserver is told of messages written to the outbox. It must be safe for concurrent use and must
// not block.
type WriteObserver interface {
	// Written is called after each Publish and, for what Capture took, after the transaction. A
	// message that was written in a transaction counts for nothing if that is rolled back later.
	Written(ctx context.Context, w Write)
}

// Write is one call of Publish or Capture. Fields may be added.
type Write struct {
	DB       string        // name of the database
	Topic    string        // topic of all its messages
	Messages int           // how many
	Bytes    int           // sum of their payloads
	Duration time.Duration // of the statements; zero for Capture, which travels with COMMIT
	Err      error         // as Publish returns it
}
