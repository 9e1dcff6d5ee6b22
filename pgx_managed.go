package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// managedTx is the pgx.Tx that handlers get: all of it works but Commit and Rollback, which belong to
// whoever began the transaction. After the end of the transaction it refuses everything, because the
// connection may serve somebody else by then.
type managedTx struct{ tx *pgxTx }

var _ pgx.Tx = managedTx{}

func (m managedTx) conn() *pgx.Conn { return m.tx.conn.Conn() }

// Begin starts a nested transaction: a savepoint, which the caller must commit or roll back.
func (m managedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	return beginNested(ctx, m, 1)
}

func (m managedTx) Commit(context.Context) error   { return ErrTxManaged }
func (m managedTx) Rollback(context.Context) error { return ErrTxManaged }

func (m managedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := m.tx.usable(); err != nil {
		return 0, err
	}
	return m.conn().CopyFrom(ctx, table, columns, src)
}

func (m managedTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if err := m.tx.usable(); err != nil {
		return failedBatch{err}
	}
	return m.conn().SendBatch(ctx, batch)
}

// LargeObjects needs a transaction that pgx made. Telling pgx that the one we are in has just begun
// makes one without touching it.
func (m managedTx) LargeObjects() pgx.LargeObjects {
	if m.tx.usable() == nil {
		if tx, err := m.conn().BeginTx(context.Background(), pgx.TxOptions{BeginQuery: "select"}); err == nil {
			return tx.LargeObjects()
		}
	}
	return pgx.LargeObjects{}
}

func (m managedTx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := m.tx.usable(); err != nil {
		return nil, err
	}
	return m.conn().Prepare(ctx, name, query)
}

func (m managedTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := m.tx.usable(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return m.conn().Exec(ctx, query, args...)
}

func (m managedTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := m.tx.usable(); err != nil {
		return nil, err
	}
	return m.conn().Query(ctx, query, args...)
}

func (m managedTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := m.tx.usable(); err != nil {
		return failedRow{err}
	}
	return m.conn().QueryRow(ctx, query, args...)
}

func (m managedTx) Conn() *pgx.Conn { return m.conn() }

// nestedTx is a savepoint of a managedTx.
type nestedTx struct {
	managedTx
	depth int
	done  bool
}

func beginNested(ctx context.Context, m managedTx, depth int) (pgx.Tx, error) {
	if _, err := m.Exec(ctx, fmt.Sprintf("savepoint outbox_nested_%d", depth)); err != nil {
		return nil, err
	}
	return &nestedTx{managedTx: m, depth: depth}, nil
}

func (n *nestedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if n.done {
		return nil, pgx.ErrTxClosed
	}
	return beginNested(ctx, n.managedTx, n.depth+1)
}

func (n *nestedTx) Commit(ctx context.Context) error   { return n.end(ctx, "release savepoint") }
func (n *nestedTx) Rollback(ctx context.Context) error { return n.end(ctx, "rollback to savepoint") }

func (n *nestedTx) end(ctx context.Context, verb string) error {
	if n.done {
		return pgx.ErrTxClosed
	}
	n.done = true
	_, err := n.Exec(ctx, fmt.Sprintf("%s outbox_nested_%d", verb, n.depth))
	return err
}

type failedRow struct{ err error }

func (f failedRow) Scan(...any) error { return f.err }

type failedBatch struct{ err error }

func (f failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, f.err }
func (f failedBatch) Query() (pgx.Rows, error)         { return nil, f.err }
func (f failedBatch) QueryRow() pgx.Row                { return failedRow{f.err} }
func (f failedBatch) Close() error                     { return f.err }
func (f failedBatch) Tx() pgx.Tx                       { return nil }
