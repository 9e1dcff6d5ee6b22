package drive

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// send sends a batch and returns the rows of the statement that follows the first before statements.
func (p pgxPool) send(ctx context.Context, conn *pgxpool.Conn, batch *pgx.Batch, before int) (Rows, error) {
	r := &sentRows{pool: p, conn: conn, results: conn.SendBatch(ctx, batch)}
	var err error
	for range before {
		if _, err := r.results.Exec(); err != nil {
			return nil, r.end(ctx, err)
		}
	}
	if r.Rows, err = r.results.Query(); err != nil {
		return nil, r.end(ctx, err)
	}
	r.ctx = ctx
	return r, nil
}

// sentRows also ends its batch when it is closed.
type sentRows struct {
	pgx.Rows
	pool    pgxPool
	conn    *pgxpool.Conn // nil once it was released
	results pgx.BatchResults
	ctx     context.Context
	err     error
}

func (r *sentRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		_ = r.Close() // Err returns the error
	}
	return more
}

func (r *sentRows) Err() error {
	if r.conn == nil {
		return r.err
	}
	return r.Rows.Err()
}

func (r *sentRows) Close() error {
	if r.conn == nil {
		return r.err
	}
	r.Rows.Close()
	r.err = r.end(r.ctx, r.Rows.Err())
	return r.err
}

// end reads the reply to COMMIT, cleans up after a failure, and releases the connection.
func (r *sentRows) end(ctx context.Context, err error) error {
	if closeErr := r.results.Close(); err == nil {
		err = closeErr
	}
	if !r.conn.Conn().IsClosed() && r.conn.Conn().PgConn().TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackTimeout)
		defer cancel()
		_, _ = r.conn.Exec(ctx, "rollback") // Release drops a connection that is still in a transaction
	}
	r.conn.Release()
	r.conn = nil
	r.pool.notice(err)
	return r.pool.explain(err)
}
