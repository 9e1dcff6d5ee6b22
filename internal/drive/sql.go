package drive

import (
	"context"
	"database/sql"
	"slices"

	"github.com/jackc/pgx/v5/stdlib"
)

type sqlPool struct {
	db   *sql.DB
	mode []any // how statements outside transactions are sent: see planEachTime
}

// NewSQL returns a Pool for a database/sql pool of any Postgres driver.
func NewSQL(db *sql.DB) Pool { return newSQLPool(db) }

func newSQLPool(db *sql.DB) sqlPool {
	b := sqlPool{db: db}
	if _, ok := db.Driver().(*stdlib.Driver); ok {
		b.mode = planEachTime // other drivers do not keep plans and have no such modes
	}
	return b
}

// execQuerier is implemented by *sql.DB, *sql.Conn and *sql.Tx.
type execQuerier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func sqlExec(ctx context.Context, on execQuerier, query string, args []any) (int64, error) {
	result, err := on.ExecContext(ctx, query, ArrayArgs(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func sqlQuery(ctx context.Context, on execQuerier, query string, args []any) (Rows, error) {
	rows, err := on.QueryContext(ctx, query, ArrayArgs(args)...)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func (b sqlPool) Name() string { return "postgres" }

func (b sqlPool) ID() any { return b.db }

func (b sqlPool) Conns() Conns { return Conns{Max: b.db.Stats().MaxOpenConnections, Needs: 5} }

func (b sqlPool) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	n, err := sqlExec(ctx, b.db, query, slices.Concat(b.mode, args))
	return n, b.explain(err)
}

func (b sqlPool) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := sqlQuery(ctx, b.db, query, slices.Concat(b.mode, args))
	return rows, b.explain(err)
}

func (b sqlPool) explain(err error) error {
	if err == nil {
		return nil
	}
	stats := b.db.Stats()
	return explainPool(err, stats.InUse, stats.MaxOpenConnections)
}

func (b sqlPool) Begin(ctx context.Context, opts TxOptions) (OwnTx, error) {
	tx, err := b.db.BeginTx(ctx, &sql.TxOptions{Isolation: opts.Isolation})
	if err != nil {
		return nil, b.explain(err)
	}
	return &sqlTx{tx: tx}, nil
}

func (b sqlPool) ReaderConn(context.Context) (Querier, func(), error) { return b, nil, nil }

func (b sqlPool) PlanCached() Querier { return b }

func (b sqlPool) Dedicated(context.Context) (Querier, func(), error) {
	c := &sqlConn{db: b.db, pool: b}
	return c, c.close, nil
}

func (b sqlPool) Reset() {}

func (b sqlPool) Listen(context.Context, string, func(string)) error { return ErrNoListen }
