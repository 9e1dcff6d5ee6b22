package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// TxOptions are the settings of one transaction.
type TxOptions struct {
	// Isolation is the isolation level; default: the server's, normally READ COMMITTED.
	Isolation sql.IsolationLevel
	// Timeout bounds the transaction, from before BEGIN to COMMIT; default 0, no limit. If fn ignores the end of the
	// outermost context, the transaction is rolled back at most 5 s later. In a nested call, a statement that it
	// interrupts costs the whole transaction, because the driver closes the connection; to undo only fn's work, let fn
	// begin with SET LOCAL statement_timeout.
	Timeout time.Duration
	// OnBegin runs first in the transaction, for SET LOCAL or a tenant's search_path; default none. An error ends the
	// transaction.
	OnBegin func(ctx context.Context) error
}

// InTx runs fn in a transaction of db and commits it if fn returns nil. fn finds the transaction in its context. If fn
// returns an error or panics, the transaction is rolled back and the error or panic is passed on.
//
// If ctx already carries a transaction of InTx, WithPgxTx or WithSQLTx, fn runs behind a savepoint of it, and a failure
// undoes only fn's work. Nested calls run one at a time, with the innermost context and in the goroutine of the
// surrounding function; others return an error. If the transaction of ctx has ended, InTx returns ErrTxEnded; with
// OutsideTx(ctx) it begins a new one.
//
// A transaction that travelled with a message through an in-process Pub/Sub does not count for the Router's handler. A
// loop of your own behind such a Pub/Sub passes OutsideTx(msg.Context()) to InTx, PgxTx, SQLTx, PublishContext and
// queue.Store; otherwise it joins the publisher's transaction, or returns an error.
//
// InTx also returns ErrNoDB, ErrOtherDB if ctx carries a transaction of another pool, ErrRolledBack and
// ErrCommitUnknown. It does not retry serialization failures and deadlocks: middleware.Tx does.
func InTx(ctx context.Context, db *DB, fn func(ctx context.Context) error) error {
	return InTxWith(ctx, db, TxOptions{}, fn)
}

// InTxWith runs fn in a transaction with these settings, like InTx. In a nested call only Timeout and OnBegin are used.
func InTxWith(ctx context.Context, db *DB, opts TxOptions, fn func(ctx context.Context) error) error {
	return core.InTxHere(ctx, (*core.DB)(db), core.TxOptions(opts), fn)
}

// WithPgxTx returns a context with a transaction that the caller began on the database of db and will commit. Messages
// published with the context are written immediately and become visible with the caller's COMMIT. A forwarder finds
// them at its next poll, or immediately if the caller then calls db.Wake.
//
// AfterCommit does not work in it, and SetRollbackOnly only inside a nested InTx, because this module does not learn
// how the transaction ends. WithPgxTx returns ErrNoDB, or ErrNoTx for a nil transaction.
func WithPgxTx(ctx context.Context, db *DB, tx pgx.Tx) (context.Context, error) {
	v := reflect.ValueOf(tx)
	if pooled, ok := tx.(*pgxpool.Tx); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() ||
		ok && *pooled == (pgxpool.Tx{}) {
		return ctx, fmt.Errorf("WithPgxTx: %w", errNilTx)
	}
	return withTx(ctx, db, drive.JoinPgx(tx))
}

// WithSQLTx returns a context with a database/sql transaction that the caller began. Otherwise it is like WithPgxTx.
func WithSQLTx(ctx context.Context, db *DB, tx *sql.Tx) (context.Context, error) {
	if tx == nil || reflect.ValueOf(tx).Elem().IsZero() {
		return ctx, fmt.Errorf("WithSQLTx: %w", errNilTx)
	}
	return withTx(ctx, db, drive.JoinSQL(tx))
}

func withTx(ctx context.Context, db *DB, tx drive.Tx) (context.Context, error) {
	if err := (*core.DB)(db).Check(); err != nil {
		return ctx, err
	}
	return core.WithTx(ctx, (*core.DB)(db), tx), nil
}

// PgxTx returns the transaction in the context, if its handle was made by FromPgx. It returns ErrNoTx without one or
// after its end, ErrTxKind for a *sql.Tx, and the error of BEGIN. One goroutine at a time may use it. Commit and
// Rollback return an error.
func PgxTx(ctx context.Context) (pgx.Tx, error) { return native[pgx.Tx](ctx) }

// SQLTx returns the transaction in the context, if its handle was made by FromSQL. Its errors are those of PgxTx. Do
// not call Commit or Rollback: InTx would return ErrTxEnded.
func SQLTx(ctx context.Context) (*sql.Tx, error) { return native[*sql.Tx](ctx) }

func native[T any](ctx context.Context) (T, error) {
	var none T
	tx, err := core.Native(ctx)
	if err != nil {
		return none, err
	}
	if tx, ok := tx.(T); ok {
		return tx, nil
	}
	if _, ok := any(tx).(*sql.Tx); ok {
		return none, fmt.Errorf("%w: it is a *sql.Tx, because its handle was made with FromSQL: use SQLTx", ErrTxKind)
	}
	return none, fmt.Errorf("%w: it is a pgx.Tx, because its handle was made with FromPgx: use PgxTx", ErrTxKind)
}

// OutsideTx returns ctx without its transaction. Writes with the new context are independent of the transaction's
// rollback or commit.
func OutsideTx(ctx context.Context) context.Context { return core.OutsideTx(ctx) }

// AfterCommit calls fn after the transaction in the context commits. Functions are called in order, with a context
// outside the transaction. That context ends when the functions have returned, and has the deadline of the transaction:
// for slow or concurrent work, use context.WithoutCancel and a timeout.
//
// fn is not called if the transaction, or the nested InTx around it, is rolled back or its outcome is unknown. A panic
// is logged. AfterCommit returns ErrNoTx without a transaction of InTx or middleware.Tx, or if it has ended, and an
// error for a nil function.
func AfterCommit(ctx context.Context, fn func(ctx context.Context)) error {
	return core.AfterCommit(ctx, fn)
}

// SetRollbackOnly makes InTx roll back although its function returns nil, and return ErrRolledBack; middleware.Tx then
// acks the message. It is for code whose errors are swallowed, such as CQRS handlers with AckCommandHandlingErrors. In
// a nested InTx it applies to the savepoint. It returns ErrNoTx without a transaction of InTx or middleware.Tx, or if
// it has ended.
func SetRollbackOnly(ctx context.Context) error { return core.SetRollbackOnly(ctx) }
