package drive

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A statement outside of transactions that needs pins is sent with BEGIN before and COMMIT behind it, in one round
// trip.

func (p pgxPool) execPinned(ctx context.Context, pins []string, query string, args []any) (int64, error) {
	rows, err := p.queryPinned(ctx, pins, query, args)
	if err != nil {
		return 0, err
	}
	err = rows.Close()
	return rows.(*pinnedRows).CommandTag().RowsAffected(), err
}

func (p pgxPool) queryPinned(ctx context.Context, pins []string, query string, args []any) (Rows, error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, p.explain(err)
	}
	batch := &pgx.Batch{}
	batch.Queue("begin isolation level read committed")
	for _, pin := range pins {
		batch.Queue(pin)
	}
	if len(p.mode) > 0 {
		batch.Queue("set local plan_cache_mode = 'force_custom_plan'") // as planEachTime, which batches do not take
	}
	before := batch.Len()
	batch.Queue(query, args...)
	batch.Queue("commit")
	return p.send(ctx, conn, batch, before)
}

// send returns the rows of a batch's statement that has so many before it.
func (p pgxPool) send(ctx context.Context, conn *pgxpool.Conn, batch *pgx.Batch, before int) (Rows, error) {
	r := &pinnedRows{pool: p, conn: conn, results: conn.SendBatch(ctx, batch)}
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

// pinnedRows also end the transaction, or the batch, that they came in.
type pinnedRows struct {
	pgx.Rows
	pool    pgxPool
	conn    *pgxpool.Conn // nil = it was released
	results pgx.BatchResults
	ctx     context.Context
	err     error
}

func (r *pinnedRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		_ = r.Close() // Err says it
	}
	return more
}

func (r *pinnedRows) Err() error {
	if r.conn == nil {
		return r.err
	}
	return r.Rows.Err()
}

func (r *pinnedRows) Close() error {
	if r.conn == nil {
		return r.err
	}
	r.Rows.Close()
	r.err = r.end(r.ctx, r.Rows.Err())
	return r.err
}

// end reads the answer to COMMIT, undoes what failed, and gives the connection back.
func (r *pinnedRows) end(ctx context.Context, err error) error {
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
