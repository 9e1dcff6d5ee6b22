package outbox

import (
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

var (
	// ErrNoDB is returned for a nil pool or a nil *DB.
	ErrNoDB = core.ErrNoDB // outbox: no database…

	// ErrTxKind is returned by PgxTx and SQLTx if the transaction in the context is not of their type.
	//
	// Cure: use PgxTx with a handle of FromPgx, SQLTx with one of FromSQL.
	ErrTxKind = errors.New("outbox: the transaction in the context is of another type")

	// ErrNoTx is returned by Publish if the context carries no transaction, or one that has ended. An ended transaction
	// is an error for each value of PublisherConfig.WithoutTx; OutsideTx removes it.
	ErrNoTx = core.ErrNoTx // outbox: no transaction in the context…

	// ErrOtherDB is returned if the transaction in the context was begun on a handle of another pool.
	//
	// Cure: make one handle for each pool.
	ErrOtherDB = core.ErrOtherDB // outbox: the transaction in the context belongs to another database…

	// ErrInvalidMessage is returned by Publish for a message that cannot be stored exactly. Nothing of
	// the call was written.
	//
	// Cure: correct the field that the error names.
	ErrInvalidMessage = core.ErrInvalidMessage // outbox: invalid message

	// ErrNotStored is returned if a trigger or a rule swallowed an insert. Publish returns it, or InTx if the messages
	// wait for COMMIT, and so do middleware.Inbox and package queue. Nothing of the transaction is committed, unless the
	// caller ignores the error in a transaction of its own.
	ErrNotStored = text.ErrNotStored // outbox: the database accepted the insert and stored fewer rows…

	// ErrCommitUnknown is returned by InTx if the connection broke or timed out during COMMIT.
	//
	// Cure: look for the effects before you repeat them; behind an inbox the redelivery does.
	ErrCommitUnknown = drive.ErrCommitUnknown // outbox: the outcome of COMMIT is unknown

	// ErrTxEnded is returned by InTx and Publish if the function ended the transaction itself. Later writes of the
	// function were not part of the transaction, and nothing was published for them. It is also returned, without calling
	// the function, for a context whose transaction has ended; OutsideTx removes it.
	ErrTxEnded = drive.ErrTxEnded // outbox: the transaction was ended inside the function that InTx runs…

	// ErrNacked is the error of a message that was nacked without an error. middleware.Tx returns it if the handler nacked
	// and returned nil, and a Subscriber records it.
	//
	// Cure: return an error instead.
	ErrNacked = core.ErrNacked // outbox: the message was nacked

	// ErrRolledBack is returned by InTx if its function returned nil after SetRollbackOnly.
	//
	// Cure: none is needed.
	ErrRolledBack = core.ErrRolledBack // outbox: rolled back on request

	// ErrRunning is returned by the second call of Run: each part runs once.
	//
	// Cure: make another one with its constructor.
	ErrRunning = errors.New("outbox: Run was called before")

	// ErrClosed is returned by a closed publisher, forwarder or subscriber.
	//
	// Cure: make another one, or stop its callers before you close it.
	ErrClosed = errors.New("outbox: closed")

	errNilTx = core.NilTx
)
