package integration_test

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// gate stands between a pool and its server. Shut, it lets nothing through but keeps the connections, as a
// process that is stopped would.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

// newGatedHandle opens a handle behind a gate, which is opened when the test ends.
func newGatedHandle(t testing.TB, url string) (handle, *gate) {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	h := pgxHandle(t, "gated", url, func(cfg *pgxpool.Config) {
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
	once sync.Once
	over chan struct{} // closed by Close, or by a deadline in the past, which is how pgx cancels
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if passErr := c.gate.pass(c.over); passErr != nil && err == nil {
		return 0, passErr
	}
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	if err := c.gate.pass(c.over); err != nil {
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

func (c *gatedConn) expire(t time.Time) {
	if !t.IsZero() && t.Before(time.Now()) {
		c.once.Do(func() { close(c.over) })
	}
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.over) })
	return c.Conn.Close()
}
