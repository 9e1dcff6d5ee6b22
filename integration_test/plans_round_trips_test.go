package integration_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/middleware"
)

// tripCounter counts round trips: each time that a connection writes after it has read. The NOTIFY that tells other
// processes of a commit, in the background and coalesced, is none of the handler's.
type tripCounter struct {
	net.Conn
	trips   *atomic.Int64
	writing bool
}

func (c *tripCounter) Write(p []byte) (int, error) {
	if !c.writing && !bytes.Contains(p, []byte("pg_notify")) {
		c.writing = true
		c.trips.Add(1)
	}
	return c.Conn.Write(p)
}

func (c *tripCounter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.writing = false
	}
	return n, err
}

func TestRoundTripsOnPgx(t *testing.T) {
	t.Parallel()
	var trips atomic.Int64
	h := pgxHandle(t, "counted", newMigratedDatabase(t), func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &tripCounter{Conn: conn, trips: &trips}, nil
		}
	})
	newEffects(t, h)
	silent := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	several := func(msg *message.Message) ([]*message.Message, error) {
		produced, err := book(h)(msg)
		return append(produced, newMessage(""), newMessage("")), err
	}
	mws := stack(t, h, middleware.StackConfig{})
	for _, test := range []struct {
		name    string
		handler message.HandlerFunc
		want    int64
	}{
		{"BEGIN+inbox, INSERT, outbox+COMMIT", book(h), 3},
		{"three messages cost no more", several, 3},
		{"no statement and no message: BEGIN+inbox, COMMIT", silent, 2},
	} {
		_, err := chain(test.handler, mws...)(newMessage("")) // prepares the statements
		require.NoError(t, err)
		trips.Store(0)
		_, err = chain(test.handler, mws...)(newMessage(""))
		require.NoError(t, err)
		assert.Equal(t, test.want, trips.Load(), test.name)
	}
}
