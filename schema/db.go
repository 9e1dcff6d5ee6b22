package schema

import (
	"context"
	"errors"
)

// Querier runs statements: a pool, a connection or a transaction. Arguments may be int64, int,
// float64, string, []byte, bool, nil, and slices of int64, float64, string, bool and []byte, which stand for
// arrays. *outbox.DB implements it, and outbox.TxFromContext[schema.Querier] yields the one of the
// current transaction.
type Querier interface {
	// Exec runs a statement and returns how many rows it touched.
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

// DB is a database handle: *outbox.DB.
type DB interface {
	Querier
	// Transact runs fn in a READ COMMITTED transaction and commits if fn returns nil.
	Transact(ctx context.Context, fn func(Querier) error) error
	// Dedicated opens a connection beside those of the pool if it can, else takes one of the pool. The function
	// returned closes it.
	Dedicated(ctx context.Context) (Querier, func(), error)
}

// SQLState returns the SQLSTATE of a database error of pgx or lib/pq, or "" if err carries none.
func SQLState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
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
			return errors.Join(err, rows.Close())
		}
	}
	if err := rows.Err(); err != nil {
		return errors.Join(err, rows.Close())
	}
	return rows.Close()
}
