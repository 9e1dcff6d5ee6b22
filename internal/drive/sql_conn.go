package drive

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// sqlConn is one connection taken from a pool, and replaced when it breaks.
type sqlConn struct {
	db   *sql.DB
	pool sqlPool
	mu   sync.Mutex
	conn *sql.Conn
}

func (c *sqlConn) get(ctx context.Context) (*sql.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := c.db.Conn(ctx)
	c.conn = conn
	return conn, err
}

// dropped closes a connection after an error that has no SQLSTATE or shows that it leads to a standby, so that the next
// call opens another.
func (c *sqlConn) dropped(err error) error {
	state := text.SQLState(err)
	if err != nil && (state == "" || state == ReadOnlyServer || endsConnection(err) || errors.Is(err, driver.ErrBadConn)) {
		c.close()
	}
	return err
}

func (c *sqlConn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		// Close would only return it to the pool, which would hand it out again.
		_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
		c.conn = nil
	}
}

func (c *sqlConn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return 0, err
	}
	n, err := sqlExec(ctx, conn, query, slices.Concat(c.pool.mode, args))
	return n, c.dropped(err)
}

func (c *sqlConn) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := sqlQuery(ctx, conn, query, slices.Concat(c.pool.mode, args))
	return rows, c.dropped(err)
}
