package drive

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// ErrNoCopy is returned by WithRawConn if the driver cannot COPY.
//
// Cause: the driver is lib/pq, or wraps pgx.
// Cure: use outboxctl.
var ErrNoCopy = errors.New("outbox: the driver has no COPY in both directions: " +
	"use a pgx pool, or database/sql with driver pgx")

// RawConnPool is a Pool that gives access to its raw connections, for COPY.
type RawConnPool interface {
	// WithRawConn calls fn with a connection outside any transaction. A transaction that fn leaves open is rolled back.
	WithRawConn(ctx context.Context, fn func(*pgconn.PgConn) error) error
}

func (p pgxPool) WithRawConn(ctx context.Context, fn func(*pgconn.PgConn) error) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return p.explain(err)
	}
	defer conn.Release() // drops a connection that is still in a transaction
	err = rollbackAfter(ctx, conn.Conn().PgConn(), fn)
	p.notice(err)
	return err
}

func (b sqlPool) WithRawConn(ctx context.Context, fn func(*pgconn.PgConn) error) error {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return b.explain(err)
	}
	defer conn.Close()
	return conn.Raw(func(raw any) error {
		c, ok := raw.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("%w: it is %T", ErrNoCopy, raw)
		}
		pg := c.Conn().PgConn()
		err := rollbackAfter(ctx, pg, fn)
		if pg.IsClosed() || pg.TxStatus() != 'I' {
			return errors.Join(err, driver.ErrBadConn)
		}
		return err
	})
}

// rollbackAfter runs fn and rolls back the transaction that it leaves open.
func rollbackAfter(ctx context.Context, pg *pgconn.PgConn, fn func(*pgconn.PgConn) error) error {
	err := fn(pg)
	if pg.IsClosed() || pg.TxStatus() == 'I' {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackTimeout)
	defer cancel()
	_, rollback := pg.Exec(ctx, "rollback").ReadAll()
	return errors.Join(err, rollback)
}
