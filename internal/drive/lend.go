package drive

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// ErrNoCopy is returned by Lend where COPY cannot be had.
//
// Cause: the driver is lib/pq, or wraps pgx.
// Cure: use outboxctl.
var ErrNoCopy = errors.New("outbox: the driver has no COPY in both directions: " +
	"use a pgx pool, or database/sql with driver pgx")

// Lender is a Pool whose connections can COPY.
type Lender interface {
	// Lend calls fn with a connection in no transaction, for the protocol itself. What fn leaves open is rolled back.
	Lend(ctx context.Context, fn func(*pgconn.PgConn) error) error
}

func (p pgxPool) Lend(ctx context.Context, fn func(*pgconn.PgConn) error) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return p.explain(err)
	}
	defer conn.Release() // drops a connection that is still in a transaction
	err = lent(ctx, conn.Conn().PgConn(), fn)
	p.notice(err)
	return err
}

func (b sqlPool) Lend(ctx context.Context, fn func(*pgconn.PgConn) error) error {
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
		err := lent(ctx, pg, fn)
		if pg.IsClosed() || pg.TxStatus() != 'I' {
			return errors.Join(err, driver.ErrBadConn)
		}
		return err
	})
}

// lent runs fn, and ends what it leaves open.
func lent(ctx context.Context, pg *pgconn.PgConn, fn func(*pgconn.PgConn) error) error {
	err := fn(pg)
	if pg.IsClosed() || pg.TxStatus() == 'I' {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackTimeout)
	defer cancel()
	_, rollback := pg.Exec(ctx, "rollback").ReadAll()
	return errors.Join(err, rollback)
}
