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

// TxOptions are the settings of one transaction. The zero value is the server's default isolation, read-write.
type TxOptions struct {
	// Isolation is the isolation level; default: the server's, normally READ COMMITTED.
	Isolation sql.IsolationLevel
	// ReadOnly makes the transaction refuse writes, also to inbox and outbox; default off.
	ReadOnly bool
	// Timeout bounds the transaction, from before BEGIN to COMMIT; default 0, no limit.
	Timeout time.Duration
	// OnBegin runs first in the transaction, for SET LOCAL, the tenant's search_path or role; default none. An error
	// ends the transaction.
	OnBegin func(ctx context.Context) error
}

// InTx runs fn in a transaction of db, which fn finds in its context, and commits it if fn returns nil. If fn returns
// an error or panics, the transaction is rolled back and the error or the panic passed on. In a context that carries a
// transaction already, of InTx, WithPgxTx or WithSQLTx, fn runs behind a savepoint of that one: its failure undoes only
// its own work. There can be one such nested call at a time, with the context of the innermost, and in the goroutine of
// the function around it; any other gets ErrTxBusy. If that transaction, or the nested InTx, has ended, InTx returns
// ErrTxEnded; with OutsideTx(ctx) it begins a new one. A transaction that came along with a message which a Router
// delivered, as in-process Pub/Subs can pass contexts on, counts as none: it belongs to the publisher. A loop of your
// own behind such a Pub/Sub passes OutsideTx(msg.Context()) to InTx, or gets ErrTxBusy while that transaction is open;
// PgxTx, SQLTx, PublishContext and the methods of queue.Store cannot tell, and join it.
//
// Besides the errors of fn and of the database it returns ErrNoDB, ErrOtherDB if the context carries a
// transaction of another handle, ErrRolledBack, ErrTxBusy, ErrTxEnded and ErrCommitUnknown. Serialization failures
// and deadlocks are not retried here; middleware.Tx does.
func InTx(ctx context.Context, db *DB, fn func(ctx context.Context) error) error {
	return InTxWith(ctx, db, TxOptions{}, fn)
}

// InTxWith is InTx with settings. In a nested call only Timeout and OnBegin are used.
func InTxWith(ctx context.Context, db *DB, opts TxOptions, fn func(ctx context.Context) error) error {
	return core.InTxHere(ctx, (*core.DB)(db), core.TxOptions(opts), fn)
}

// WithPgxTx returns a context that carries a transaction which the caller began, on the database of db, and will
// commit. What is published with it is written at once and becomes visible with the caller's COMMIT; a forwarder
// notices at its next poll, or at once if the caller then calls db.Wake. AfterCommit and SetRollbackOnly do not work in
// it, because this module does not learn how it ended; inside a nested InTx SetRollbackOnly does, for the savepoint. It
// returns ErrNoDB and, for a nil or an empty transaction, ErrNoTx.
func WithPgxTx(ctx context.Context, db *DB, tx pgx.Tx) (context.Context, error) {
	v := reflect.ValueOf(tx)
	if pooled, ok := tx.(*pgxpool.Tx); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() ||
		ok && *pooled == (pgxpool.Tx{}) {
		return ctx, fmt.Errorf("WithPgxTx: %w", errNilTx)
	}
	return withTx(ctx, db, drive.JoinPgx(tx))
}

// WithSQLTx is WithPgxTx for database/sql.
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

// PgxTx returns the transaction that the context carries, if its handle is of FromPgx. It returns ErrNoTx if there is
// none or it has ended, ErrTxKind if it is a *sql.Tx, and the error of BEGIN if that failed. Like any transaction it
// serves one goroutine at a time. Commit and Rollback are refused with ErrTxManaged.
func PgxTx(ctx context.Context) (pgx.Tx, error) { return native[pgx.Tx](ctx) }

// SQLTx is PgxTx for a handle of FromSQL. Do not call Commit or Rollback of what it returns: InTx would return
// ErrTxEnded.
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
	switch any(tx).(type) {
	case *sql.Tx:
		return none, fmt.Errorf("%w: it is a *sql.Tx, because its handle was made with FromSQL: use SQLTx", ErrTxKind)
	case pgx.Tx:
		return none, fmt.Errorf("%w: it is a pgx.Tx, because its handle was made with FromPgx: use PgxTx", ErrTxKind)
	}
	return none, fmt.Errorf("%w: it is a fake, because its handle was made with outboxtest.NewDB, and runs no SQL: "+
		"have the handler write through an interface that the test fakes as well, or test it with a real Postgres", ErrTxKind)
}

// OutsideTx returns ctx without the transaction that it carries: what is done with it is not undone
// by a rollback, and does not become visible with the commit either.
func OutsideTx(ctx context.Context) context.Context { return core.OutsideTx(ctx) }

// AfterCommit has fn called once the transaction in the context is committed, in the order of the calls, with a context
// outside of the transaction. It is dropped if the transaction, or the nested InTx around it, is rolled back or its
// outcome unknown. A panic in it is logged and keeps no other from being called. AfterCommit returns ErrNoTx if there
// is no transaction, or only one of WithPgxTx or WithSQLTx, or if it, or the nested InTx, has ended, and an error for a
// nil function.
func AfterCommit(ctx context.Context, fn func(ctx context.Context)) error {
	return core.AfterCommit(ctx, fn)
}

// SetRollbackOnly makes InTx roll back although its function returns nil, and return ErrRolledBack; middleware.Tx then
// acks the message. It is for code whose errors are swallowed before they reach the transaction, such as CQRS handlers
// with AckCommandHandlingErrors. In a nested InTx it concerns the savepoint. It returns ErrNoTx if there is no
// transaction, or only one of WithPgxTx or WithSQLTx outside a nested InTx, or if it, or the nested InTx, has ended.
func SetRollbackOnly(ctx context.Context) error { return core.SetRollbackOnly(ctx) }
