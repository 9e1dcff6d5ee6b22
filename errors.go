package outbox

import "errors"

var (
	// ErrNoDB is returned by every constructor and function that got a nil *DB, or one made from a nil pool.
	ErrNoDB = errors.New("outbox: no database: pass a non-nil pool to FromPgx or FromSQL")

	// ErrTxKind is returned by TxFromContext if the transaction in the context is not of the type asked for: FromPgx
	// begins a pgx.Tx, FromSQL a *sql.Tx.
	ErrTxKind = errors.New("outbox: the transaction in the context is of another type")

	// ErrNoTx is returned by Publish if the context carries no transaction and PublisherConfig.WithoutTx
	// is RequireTx, and whatever that says if the transaction, or the nested InTx, of the context has ended:
	// OutsideTx takes it out.
	ErrNoTx = errors.New("outbox: no transaction in the context: put middleware.Tx around the handler or call inside outbox.InTx, " +
		"and pass that context on (PublishContext, or SetContext of the message); or set PublisherConfig.WithoutTx")

	// ErrMixedTx is returned by Publish if the messages of one call carry different transactions. Nothing
	// of the call was written.
	ErrMixedTx = errors.New("outbox: the messages of one call carry different transactions: publish them in separate calls")

	// ErrOtherDB is returned if the transaction in the context was begun on another DB than the one in use.
	ErrOtherDB = errors.New("outbox: the transaction in the context belongs to another database handle")

	// ErrBadTx is returned by WithTx for a value that is no transaction.
	ErrBadTx = errors.New("outbox: not a transaction: WithTx takes a pgx.Tx or a *sql.Tx")

	// ErrInvalidMessage is returned by Publish for a message that cannot be stored exactly. Nothing of
	// the call was written.
	ErrInvalidMessage = errors.New("outbox: invalid message")

	// ErrCommitUnknown is returned by InTx if the connection broke, or its time ran out, while COMMIT was
	// under way: the transaction may have been committed or not.
	ErrCommitUnknown = errors.New("outbox: the outcome of COMMIT is unknown")

	// ErrTxEnded is returned by InTx if its function ended the transaction itself, by Commit, Rollback
	// or SQL. What came after that in the function was not part of it, and nothing was published for it. It is also returned, without a call
	// of the function, for a context whose transaction, or nested InTx, has ended: OutsideTx takes it out.
	ErrTxEnded = errors.New("outbox: the transaction was ended inside the function that InTx runs: " +
		"leave COMMIT and ROLLBACK to InTx, return an error to roll back; RESET ALL looks the same")

	// ErrTxBusy is returned by a nested InTx while another one is running in the same transaction, or with the context
	// of the transaction around that one, and by InTx if its function returned while a nested one was still running.
	// One connection can have savepoints only within each other.
	ErrTxBusy = errors.New("outbox: a nested InTx is running in this transaction: pass on the context that its function got, " +
		"and run nested ones one after another, or outside of the transaction (OutsideTx)")

	// ErrTxManaged is returned by Commit and Rollback of the pgx.Tx that TxFromContext yields.
	ErrTxManaged = errors.New("outbox: this transaction is committed by whoever began it: return nil to commit, an error to roll back")

	// ErrRolledBack is returned by InTx if its function returned nil after SetRollbackOnly.
	ErrRolledBack = errors.New("outbox: rolled back on request")

	// ErrClosed is returned by what was closed before: by Publish of the publishers for brokers, for one.
	ErrClosed = errors.New("outbox: closed")
)
