package drive

import (
	"cmp"
	"context"
	"database/sql"
	"time"
)

// Querier runs statements: a pool, a connection or a transaction. Arguments may be int64, int, float64, string, []byte,
// bool, nil, and slices of int64, float64, string, bool and []byte, which are passed as arrays.
type Querier interface {
	// Exec runs a statement and returns the number of affected rows.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Query runs a statement and returns its rows, which the caller must close.
	Query(ctx context.Context, query string, args ...any) (Rows, error)
}

// Rows are the rows of a query; *sql.Rows is one. Err must be checked after Next returned false.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// Collect runs a query and calls scan for each row. It returns the first error of the query, of scan,
// or of the iteration.
func Collect(ctx context.Context, q Querier, scan func(Rows) error, query string, args ...any) error {
	rows, err := q.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := scan(rows); err != nil {
			_ = rows.Close() // returns the same error as Err below
			return err
		}
	}
	err = rows.Err()
	return cmp.Or(err, rows.Close())
}

// Pool is a pool of connections.
type Pool interface {
	Querier
	// Name is the name of the database, if the pool knows it.
	Name() string
	// ID is the same for everything that uses one pool, so that it can share transactions. It is comparable.
	ID() any
	Begin(ctx context.Context, opts TxOptions) (OwnTx, error)
	// Dedicated opens a connection that remains available when handlers use the whole pool: with pgx a new one with the
	// pool's settings, with database/sql one taken out of the pool. It reconnects on its own. The returned function closes
	// it.
	Dedicated(ctx context.Context) (Querier, func(), error)
	// ReaderConn opens a connection for the few statements that run all the time. On a direct connection they are planned
	// once, with indexes only, so that a plan made while the outbox was empty also suits a full outbox. Behind a pooler,
	// and with database/sql, it returns the pool, which plans them each time, and a nil close function.
	ReaderConn(ctx context.Context) (Querier, func(), error)
	// PlanCached returns the pool for statements that run all the time, and keeps their plans like ReaderConn. If
	// ReaderConn returns the pool, so does PlanCached.
	PlanCached() Querier
	// Listen calls fn with the payload of each notification of a channel, and once with "" when it has begun to listen,
	// until ctx ends or the connection breaks. It opens its own connection, which is never in a transaction. It returns
	// the reason why it ended, or ErrNoListen.
	Listen(ctx context.Context, channel string, fn func(payload string)) error
	// Reset closes all connections once they are idle, because their server is no longer a primary; new connections may
	// reach another server. With database/sql it does nothing.
	Reset()
}

// Counted is a Pool that reports its connections.
type Counted interface{ Conns() Conns }

// Conns are the connections of a pool.
type Conns struct {
	Max    int // size of the pool; 0 = no limit
	Needs  int // of these, used by a forwarder concurrently
	Beside int // opened by a forwarder outside the pool
}

// TxOptions are the settings of a transaction.
type TxOptions struct {
	Isolation sql.IsolationLevel
}

// Tx is a transaction. One goroutine uses it at a time.
type Tx interface {
	Querier
	// HandOut returns the pgx.Tx or *sql.Tx for user code.
	HandOut(ctx context.Context) (any, error)
	// Mark makes Commit detect a transaction that was ended by SQL. Call it before setting a savepoint, because a rollback
	// to the savepoint would undo a later mark.
	Mark(ctx context.Context) error
	// Marked reports whether statements in the transaction may use sqltext.InsertMarked.
	Marked() bool
	// Later reports whether messages may wait for Commit.
	Later() bool
}

// LazyTx is a Tx that begins with its first statement and can run a query before that.
type LazyTx interface {
	// QueryBeforeBegin runs a query on the transaction's connection before BEGIN. ok is false, and nothing was run, if the
	// transaction has begun, or will begin with settings that the query would lack.
	QueryBeforeBegin(ctx context.Context, query string, args ...any) (rows Rows, ok bool, err error)
}

// OwnTx is a transaction that a Pool began. Rollback has no effect after Commit or Rollback has returned.
type OwnTx interface {
	Tx
	// Commit runs the pending statements first and, once the transaction is committed, the hints, all in one round trip.
	// Results of hints are ignored.
	Commit(ctx context.Context, pending, hints []Statement) error
	// Hints reports whether Commit accepts hints.
	Hints() bool
	Rollback(ctx context.Context) error
	// Ended reports before Rollback whether the transaction has already ended, and so may have been committed, even if
	// another one has begun since. It cannot detect that if a statement failed in the other one, or with database/sql
	// after ctx has ended.
	Ended(ctx context.Context) bool
}

// Statement is a statement with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// RollbackTimeout limits the rollback for a context that has ended.
const RollbackTimeout = 5 * time.Second
