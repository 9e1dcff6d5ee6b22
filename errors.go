package outbox

import (
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

var (
	// ErrNoDB is returned by FromPgx and FromSQL for a nil pool, and by every constructor and function that got a nil *DB.
	ErrNoDB = core.ErrNoDB // outbox: no database…

	// ErrBadName is returned for a table or schema name that is refused before any SQL is built from it.
	//
	// Cure: use at most 40 ASCII letters, digits, _, $ and -, and begin with a letter or _.
	ErrBadName = sqltext.ErrBadName // bad table name

	// ErrTxKind is returned by PgxTx and SQLTx if the transaction in the context is not of their type.
	//
	// Cure: use PgxTx with a handle of FromPgx, SQLTx with one of FromSQL.
	ErrTxKind = errors.New("outbox: the transaction in the context is of another type")

	// ErrNoTx is returned by Publish if the context carries no transaction and PublisherConfig.WithoutTx
	// is RequireTx, and whatever that says if the transaction, or the nested InTx, of the context has ended:
	// OutsideTx takes it out.
	ErrNoTx = core.ErrNoTx // outbox: no transaction in the context…

	// ErrMixedTx is returned by Publish if the messages of one call carry different transactions. Nothing
	// of the call was written.
	ErrMixedTx = core.ErrMixedTx // outbox: the messages of one call carry different transactions…

	// ErrOtherDB is returned if the transaction in the context was begun on a handle of another pool than
	// the one in use.
	//
	// Cure: make one handle for each pool, and pass it to all parts.
	ErrOtherDB = core.ErrOtherDB // outbox: the transaction in the context belongs to another database…

	// ErrInvalidMessage is returned by Publish for a message that cannot be stored exactly. Nothing of
	// the call was written.
	//
	// Cure: correct the field that the error names.
	ErrInvalidMessage = core.ErrInvalidMessage // outbox: invalid message

	// ErrNotStored is returned where the database accepted an insert into a table of ours and stored nothing, because a
	// BEFORE INSERT trigger returned NULL or a rule replaced the insert: by Publish or, if its messages wait for COMMIT, by
	// InTx, by the middleware Inbox and by package queue. Nothing of the transaction is committed, unless the caller
	// ignores the error in a transaction of its own.
	//
	// Cure: drop the trigger or the rule; schema.Inspect names it.
	ErrNotStored = text.ErrNotStored // outbox: the database accepted the insert and stored fewer rows…

	// ErrCommitUnknown is returned by InTx if the connection broke, or its time-out passed, while COMMIT was
	// under way: the transaction may have been committed or not.
	//
	// Cure: look whether the effects are there before you repeat them. Behind middleware.Inbox the redelivery does
	// so.
	ErrCommitUnknown = drive.ErrCommitUnknown // outbox: the outcome of COMMIT is unknown

	// ErrTxEnded is returned by InTx, and by Publish, if the function ended the transaction itself, by Commit, Rollback
	// or SQL. What came after that in the function was not part of it, and nothing was published for it. It is also
	// returned, without a call of the function, for a context whose transaction, or nested InTx, has ended: OutsideTx
	// takes it out.
	ErrTxEnded = drive.ErrTxEnded // outbox: the transaction was ended inside the function that InTx runs…

	// ErrTxBusy is returned by a nested InTx while another one is running in the same transaction, or with the context of
	// the transaction around that one, or in another goroutine than the function of that one, and by InTx if its function
	// returned while a nested one was still running. One connection can have savepoints only within each other.
	ErrTxBusy = core.ErrTxBusy // outbox: a nested InTx is running in this transaction…

	// ErrTxManaged is returned by Commit and Rollback of what PgxTx returns.
	ErrTxManaged = drive.ErrTxManaged // outbox: this transaction is committed by whoever began it…

	// ErrNacked is the failure of a message that its handler, or the receiver of a Subscriber's message, nacked:
	// middleware.Tx returns it if the handler nacked the message and returned nil, and it is the error that a Subscriber
	// records.
	//
	// Cure: return an error that says why, instead of the nack.
	ErrNacked = core.ErrNacked // outbox: the message was nacked

	// ErrRolledBack is returned by InTx if its function returned nil after SetRollbackOnly.
	//
	// Cure: none is needed: the rollback was asked for.
	ErrRolledBack = core.ErrRolledBack // outbox: rolled back on request

	// ErrRunning is returned by Run of a part that runs, or did before: each runs once.
	//
	// Cure: make another one with its constructor.
	ErrRunning = errors.New("outbox: Run was called before")

	// ErrClosed is returned by what was closed before: by Run, Drain and Subscribe of package forwarder, and by Publish of
	// the publishers for brokers.
	//
	// Cure: make another one with its constructor, or stop the callers before it is closed.
	ErrClosed = errors.New("outbox: closed")

	errNilTx = core.NilTx
)
