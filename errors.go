package outbox

import (
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

var (
	// ErrNoDB is returned by FromPgx and FromSQL for a nil pool, and by every constructor and function that got a nil *DB.
	ErrNoDB = core.ErrNoDB

	// ErrBadName is returned for a table or schema name that is refused before any SQL is built from it.
	ErrBadName = sqltext.ErrBadName

	// ErrTxKind is returned by PgxTx and SQLTx if the transaction in the context is not of their type.
	ErrTxKind = errors.New("outbox: the transaction in the context is of another type")

	// ErrNoTx is returned by Publish if the context carries no transaction and PublisherConfig.WithoutTx
	// is RequireTx, and whatever that says if the transaction, or the nested InTx, of the context has ended:
	// OutsideTx takes it out.
	ErrNoTx = core.ErrNoTx

	// ErrMixedTx is returned by Publish if the messages of one call carry different transactions. Nothing
	// of the call was written.
	ErrMixedTx = core.ErrMixedTx

	// ErrOtherDB is returned if the transaction in the context was begun on a handle of another pool than
	// the one in use.
	ErrOtherDB = core.ErrOtherDB

	// ErrInvalidMessage is returned by Publish for a message that cannot be stored exactly. Nothing of
	// the call was written.
	ErrInvalidMessage = core.ErrInvalidMessage

	// ErrCommitUnknown is returned by InTx if the connection broke, or its time ran out, while COMMIT was
	// under way: the transaction may have been committed or not.
	ErrCommitUnknown = drive.ErrCommitUnknown

	// ErrTxEnded is returned by InTx, and by Publish, if the function ended the transaction itself, by Commit, Rollback
	// or SQL. What came after that in the function was not part of it, and nothing was published for it. It is also
	// returned, without a call of the function, for a context whose transaction, or nested InTx, has ended: OutsideTx
	// takes it out.
	ErrTxEnded = drive.ErrTxEnded

	// ErrTxBusy is returned by a nested InTx while another one is running in the same transaction, or with the context
	// of the transaction around that one, or in another goroutine than the function of that one, and by InTx if its function returned while a nested one was still running.
	// One connection can have savepoints only within each other.
	ErrTxBusy = core.ErrTxBusy

	// ErrTxManaged is returned by Commit and Rollback of what PgxTx returns.
	ErrTxManaged = drive.ErrTxManaged

	// ErrNacked is the failure of a message that its handler, or who received it from a Subscriber, nacked: middleware.Tx returns
	// it if the handler nacked the message and returned nil, and it is the error that a Subscriber records.
	ErrNacked = core.ErrNacked

	// ErrRolledBack is returned by InTx if its function returned nil after SetRollbackOnly.
	ErrRolledBack = core.ErrRolledBack

	// ErrRunning is returned by Run of a part that runs, or did before: each runs once.
	ErrRunning = errors.New("outbox: Run was called before")

	// ErrClosed is returned by what was closed before: by Run, Drain and Subscribe of package forwarder, and by Publish of
	// the publishers for brokers.
	ErrClosed = errors.New("outbox: closed")

	errNilTx = core.NilTx
)
