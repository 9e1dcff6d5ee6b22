package memory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Name is that of a Database in logs and metrics.
const Name = "memory"

var errClosed = errors.New("outboxtest: the test of this database in memory is over: close what works on it, " +
	"a Dispatcher or a Router for one, before that")

// Database is a drive.Pool without connections.
type Database struct {
	mu     sync.Mutex
	last   time.Time // what the clock said last
	over   chan struct{}
	outbox table[int64, Outboxed]
	inbox  table[inboxKey, inboxRow]
	queue  table[queueKey, Queued]

	requests table[requestKey, requestRow]

	outboxID, queueID int64         // what was drawn last
	txNumber          int64         // of the transaction that changed something last
	changing          map[int64]*Tx // those that have a number and have not ended
	commits           int64
}

// New makes an empty database.
func New() *Database {
	return &Database{
		over: make(chan struct{}), changing: map[int64]*Tx{},
		outbox: table[int64, Outboxed]{}, inbox: table[inboxKey, inboxRow]{}, queue: table[queueKey, Queued]{},
		requests: table[requestKey, requestRow]{},
	}
}

var _ drive.Pool = (*Database)(nil)

// Close has all that is done with it fail from now on.
func (d *Database) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed() {
		close(d.over)
	}
}

func (d *Database) closed() bool {
	select {
	case <-d.over:
		return true
	default:
		return false
	}
}

// now never goes back. It is called under mu.
func (d *Database) now() time.Time {
	if at := time.Now().Round(0); at.After(d.last) {
		d.last = at
	}
	return d.last
}

// Now is the clock.
func (d *Database) Now() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now()
}

// Name is that of all databases in memory.
func (d *Database) Name() string { return Name }

// ID is the Database itself.
func (d *Database) ID() any { return d }

// Exec runs one operation in a transaction of its own.
func (d *Database) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := d.alone(ctx, query, args)
	return res.touched, err
}

// Query is Exec for an operation that returns rows.
func (d *Database) Query(ctx context.Context, query string, args ...any) (drive.Rows, error) {
	res, err := d.alone(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return &rows{list: res.rows}, nil
}

func (d *Database) alone(ctx context.Context, query string, args []any) (result, error) {
	t := &Tx{db: d}
	res, err := t.run(ctx, query, args)
	if err != nil {
		return result{}, errors.Join(err, t.Rollback(ctx))
	}
	return res, t.Commit(ctx, nil, nil)
}

// Begin begins a transaction.
func (d *Database) Begin(ctx context.Context, opts drive.TxOptions) (drive.OwnTx, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch opts.Isolation {
	case sql.LevelWriteCommitted, sql.LevelLinearizable:
		return nil, fmt.Errorf("postgres has no isolation level %s", opts.Isolation)
	}
	if d.closed() {
		return nil, errClosed
	}
	return &Tx{db: d, readOnly: opts.ReadOnly, repeatable: opts.Isolation >= sql.LevelRepeatableRead}, nil
}

// Dedicated returns the Database.
func (d *Database) Dedicated(context.Context) (drive.Querier, func(), error) {
	return d, func() {}, nil
}

// ReaderConn returns the Database.
func (d *Database) ReaderConn(context.Context) (drive.Querier, func(), error) { return d, nil, nil }

// PlanCached returns the Database.
func (d *Database) PlanCached() drive.Querier { return d }

// Reset does nothing.
func (d *Database) Reset() {}

// Listen returns drive.ErrNoListen: all there is works in this process, and is woken through memory.
func (d *Database) Listen(context.Context, string, func(string)) error { return drive.ErrNoListen }

// sqlError is an error with the SQLSTATE that it would have in Postgres.
type sqlError struct{ state, text string }

func (e sqlError) Error() string    { return fmt.Sprintf("outboxtest: %s (SQLSTATE %s)", e.text, e.state) }
func (e sqlError) SQLState() string { return e.state }

// unknown is the error of a statement that has no operation.
func unknown(query string) error {
	query = strings.Join(strings.Fields(query), " ")
	return fmt.Errorf("outboxtest: this database is a fake, in memory, that runs no SQL: it has InTx, the Publisher, "+
		"the middlewares and the inbox, "+
		"and Drain in the place of a forwarder; for anything else take a handle of a real Postgres: %s", text.Cut(query, 60))
}
