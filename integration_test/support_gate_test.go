package integration_test

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// gate stands between a pool and its server. Shut, it lets nothing through but keeps the connections, as a
// process that is stopped would.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

// newGatedHandle opens a pgx handle of the database of another handle, reached as that one reaches it, behind a gate,
// which is opened when the test ends.
func newGatedHandle(t testing.TB, like handle) (handle, *gate) {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	h := pgxHandle(t, "gated", like.url, func(cfg *pgxpool.Config) {
		if like.name == "pgbouncer" {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		}
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if err := g.pass(ctx.Done()); err != nil {
				return nil, err
			}
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &gatedConn{Conn: conn, gate: g, over: make(chan struct{})}, nil
		}
	})
	t.Cleanup(g.reopen)
	return h, g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
		g.open = make(chan struct{})
	default:
	}
}

func (g *gate) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

func (g *gate) pass(over <-chan struct{}) error {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-over:
		return os.ErrDeadlineExceeded
	}
}

type gatedConn struct {
	net.Conn
	gate *gate
	mu   sync.Mutex
	over chan struct{} // closed by Close, or by a deadline in the past, which is how pgx cancels, until it sets another
}

func (c *gatedConn) pass() error {
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	return c.gate.pass(over)
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if passErr := c.pass(); passErr != nil && err == nil {
		return 0, passErr
	}
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	if err := c.pass(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *gatedConn) SetDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetDeadline(t)
}

func (c *gatedConn) SetReadDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *gatedConn) SetWriteDeadline(t time.Time) error {
	c.expire(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *gatedConn) expire(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := false
	select {
	case <-c.over:
		over = true
	default:
	}
	switch past := !deadline.IsZero() && deadline.Before(time.Now()); {
	case past && !over:
		close(c.over)
	case !past && over:
		c.over = make(chan struct{})
	}
}

func (c *gatedConn) Close() error {
	c.expire(time.Unix(1, 0))
	return c.Conn.Close()
}
