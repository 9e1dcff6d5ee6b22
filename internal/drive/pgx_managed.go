package drive

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// managedTx is the pgx.Tx that handlers get: everything works except Commit and Rollback, which belong to the code that
// began the transaction. After the end of the transaction every method returns an error, because other code may use the
// connection by then.
type managedTx struct {
	tx     *pgxTx
	nested *nested // nil for the transaction itself, not a savepoint
}

// nested is a savepoint, made by Begin of a managedTx.
type nested struct {
	name string
	done bool
}

var _ pgx.Tx = managedTx{}

func (m managedTx) usable() error {
	if m.nested != nil && m.nested.done {
		return pgx.ErrTxClosed
	}
	return m.tx.usable()
}

// Begin starts a nested transaction: a savepoint, which the caller must commit or roll back.
func (m managedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	inner := managedTx{m.tx, &nested{name: NextSavepoint()}}
	if _, err := m.tx.conn.Exec(ctx, "savepoint "+inner.nested.name); err != nil {
		return nil, err
	}
	m.tx.userSavepoints.open++
	return inner, nil
}

func (m managedTx) Commit(ctx context.Context) error   { return m.end(ctx, "release savepoint ") }
func (m managedTx) Rollback(ctx context.Context) error { return m.end(ctx, "rollback to savepoint ") }

func (m managedTx) end(ctx context.Context, verb string) error {
	if m.nested == nil {
		return ErrTxManaged
	}
	if err := m.usable(); err != nil {
		return err
	}
	_, err := m.tx.conn.Exec(ctx, verb+m.nested.name)
	m.nested.done = true
	if err == nil {
		m.tx.userSavepoints.open--
	}
	return err
}

func (m managedTx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource,
) (int64, error) {
	if err := m.usable(); err != nil {
		return 0, err
	}
	return m.tx.conn.CopyFrom(ctx, table, columns, src)
}

func (m managedTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if err := m.usable(); err != nil {
		return pgx.FailedBatchResults(batch, err)
	}
	if pgx.FailedBatchResults(batch, nil).Tx() != nil {
		return pgx.FailedBatchResults(batch, fmt.Errorf("%w: leave out Batch.BeginTx", ErrTxManaged))
	}
	for _, q := range batch.QueuedQueries {
		m.tx.userSavepoints.saw(q.SQL)
	}
	return m.tx.conn.SendBatch(ctx, batch)
}

// LargeObjects needs a transaction made by pgx. It makes one by pretending to pgx that the current transaction has just
// begun. It ends with ours.
func (m managedTx) LargeObjects() pgx.LargeObjects {
	if m.usable() == nil && m.tx.large == nil {
		m.tx.large, _ = m.tx.conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: "select"})
	}
	if m.usable() != nil || m.tx.large == nil {
		closed := &pgx.Batch{}
		closed.BeginTx(pgx.TxOptions{})
		return pgx.FailedBatchResults(closed, pgx.ErrTxClosed).Tx().LargeObjects()
	}
	return m.tx.large.LargeObjects()
}

func (m managedTx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	m.tx.userSavepoints.saw(query)
	return m.tx.conn.Conn().Prepare(ctx, name, query)
}

func (m managedTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := m.usable(); err != nil {
		return pgconn.CommandTag{}, err
	}
	m.tx.userSavepoints.saw(query)
	return m.tx.conn.Exec(ctx, query, args...)
}

func (m managedTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := m.usable(); err != nil {
		return failed(err).Query()
	}
	m.tx.userSavepoints.saw(query)
	return m.tx.conn.Query(ctx, query, args...)
}

func (m managedTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := m.usable(); err != nil {
		return failed(err).QueryRow()
	}
	m.tx.userSavepoints.saw(query)
	return m.tx.conn.QueryRow(ctx, query, args...)
}

// Conn returns nil after the end of the transaction, and if it could not begin.
func (m managedTx) Conn() *pgx.Conn {
	if m.tx.usable() != nil {
		return nil
	}
	m.tx.userSavepoints.unseen = true
	return m.tx.conn.Conn()
}

// failed returns rows as pgx returns them with an error: closed, and with the error.
func failed(err error) pgx.BatchResults { return pgx.FailedBatchResults(&pgx.Batch{}, err) }
