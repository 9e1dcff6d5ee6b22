package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/schema"
)

// DB is a handle on a Postgres database. It is made once per pool and shared: a forwarder wakes at
// once for commits that were made through the same DB. It is safe for concurrent use and owns
// nothing: closing the pool is the caller's business.
type DB struct {
	backend backend
	name    string
	id      string // tells our own notifications from others'
	wakes   wakes
}

var _ schema.DB = (*DB)(nil)

// FromPgx makes a handle on a pgx pool, named after its database. A nil pool is reported as ErrNoDB by
// whatever the handle is given to.
func FromPgx(pool *pgxpool.Pool) *DB {
	if pool == nil {
		return &DB{}
	}
	return &DB{backend: newPgxBackend(pool), id: uuid.NewString(), name: pool.Config().ConnConfig.Database}
}

// FromSQL makes a handle on a database/sql pool of any Postgres driver, such as pgx's stdlib or lib/pq,
// named "postgres". A nil pool is reported as ErrNoDB by whatever the handle is given to. With pgx's stdlib leave the
// description cache on (description_cache_capacity, 512 by default): statements outside transactions fail without it.
func FromSQL(db *sql.DB) *DB {
	if db == nil {
		return &DB{}
	}
	return &DB{backend: newSQLBackend(db), id: uuid.NewString(), name: "postgres"}
}

// WithName sets the name of the database in logs and metrics and returns the same handle. Call it
// before the handle is in use.
func (db *DB) WithName(name string) *DB {
	db.name = name
	return db
}

// Name returns the name of the database in logs and metrics, "" for a nil handle.
func (db *DB) Name() string {
	if db == nil {
		return ""
	}
	return db.name
}

// Check returns ErrNoDB if db is nil or was made from a nil pool.
func (db *DB) Check() error {
	if db == nil || db.backend == nil {
		return ErrNoDB
	}
	return nil
}

// Exec runs one statement outside any transaction and returns how many rows it touched. Arguments may be
// what schema.Querier says, with either kind of pool.
func (db *DB) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := db.Check(); err != nil {
		return 0, err
	}
	return db.backend.Exec(ctx, query, args...)
}

// Query runs one query outside any transaction. The rows must be closed.
func (db *DB) Query(ctx context.Context, query string, args ...any) (schema.Rows, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	return db.backend.Query(ctx, query, args...)
}

// Transact runs fn in a READ COMMITTED transaction of its own and commits it if fn returns nil. It is
// for statements of this module, such as migrations; InTx is for yours.
func (db *DB) Transact(ctx context.Context, fn func(schema.Querier) error) error {
	if err := db.Check(); err != nil {
		return err
	}
	tx, err := db.backend.begin(ctx, TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.rollback(context.WithoutCancel(ctx)) // no effect after a commit
	if err := fn(tx); err != nil {
		return err
	}
	return tx.commit(ctx, nil)
}

// Dedicated opens a connection that the handlers' use of the pool cannot starve: with pgx a new one made
// with the pool's settings, with database/sql one that is taken out of the pool. The function returned
// closes it. It reconnects by itself if the connection breaks.
func (db *DB) Dedicated(ctx context.Context) (schema.Querier, func(), error) {
	if err := db.Check(); err != nil {
		return nil, nil, err
	}
	return db.backend.dedicated(ctx)
}

// Reset closes the connections of the pool once they are not in use, because they lead to a server that is no
// primary any more; new ones may find another. This package and the forwarder call it when they meet one
// (SQLSTATE 25006). With database/sql it does nothing: there, set a ConnMaxLifetime.
func (db *DB) Reset() {
	if db.Check() == nil {
		db.backend.reset()
	}
}

// readOnlyServer is the SQLSTATE of a write that reached a standby, or a primary that was demoted.
const readOnlyServer = "25006"

type statement struct {
	sql  string
	args []any
}

// backend is what differs between pgx and database/sql.
type backend interface {
	schema.Querier
	begin(ctx context.Context, opts TxOptions) (nativeTx, error)
	dedicated(ctx context.Context) (schema.Querier, func(), error)
	listen(ctx context.Context, channel string, fn func(payload string)) error
	reset()
}

// nativeTx is a transaction of a backend. commit runs the pending statements first, in the same round
// trip if it can. After commit or rollback returned, rollback has no effect.
type nativeTx interface {
	heldTx
	commit(ctx context.Context, pending []statement) error
	rollback(ctx context.Context) error
}

// A transaction that is handed out is marked with a setting that ends with it. What is written in it and COMMIT are
// preceded by a check of the mark, because a handler may send COMMIT or ROLLBACK as plain SQL, and begin another
// transaction, or chain one. The mark is a SET and not a SELECT, which would take a snapshot before OnBegin can choose
// the isolation level.
const (
	markTx = `set local watermill_outbox.tx = 'open'`
	// isMarked fails with an SQLSTATE that hardly anything else has.
	isMarked = `width_bucket(0, 0, 1, CASE current_setting('watermill_outbox.tx', true) WHEN 'open' THEN 1 ELSE 0 END) > 0`
	checkTx  = `select ` + isMarked

	insertMarked = schema.InsertMessages + `
WHERE ` + isMarked
)

// checked turns the errors of a statement with isMarked into what they mean.
func checked(err error) error {
	switch schema.SQLState(err) {
	case "2201G":
		return ErrTxEnded
	case "25P02":
		return fmt.Errorf("%w: %w", errAborted, err)
	}
	return err
}

// TxOptions are the settings of one transaction. The zero value is the server's default isolation, read-write.
type TxOptions struct {
	// Isolation is the isolation level; default: the server's, normally READ COMMITTED.
	Isolation sql.IsolationLevel
	// ReadOnly makes the transaction refuse writes, those of the inbox and the outbox included.
	ReadOnly bool
	// OnBegin runs first in the transaction: SET LOCAL, the tenant's search_path or role. An error ends
	// the transaction.
	OnBegin func(ctx context.Context) error
	// Observer, if not nil, is told how the transaction ended.
	Observer TxObserver
}

// rollbackTimeout bounds the rollback of a transaction whose context is over.
const rollbackTimeout = 5 * time.Second
