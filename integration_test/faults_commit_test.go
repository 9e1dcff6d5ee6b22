//go:build unix

package integration_test

import (
	"context"
	"database/sql"
	"io"
	"net"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestUnknownCommitIsHarmless breaks the connection while COMMIT is under way, on its way to the server or back,
// and delivers the message again.
func TestUnknownCommitIsHarmless(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	for _, c := range []struct {
		what      string
		at        cutAt
		committed bool
	}{
		{"request lost", cutAt{request: commitRequest}, false},
		{"answer lost", cutAt{answer: commitAnswer}, true},
	} {
		for _, name := range []string{"pgx", "sql-pgx", "sql-pq"} {
			t.Run(c.what+" "+name, func(t *testing.T) {
				err := deliverOverACut(t, name, c.at, c.committed)
				require.ErrorIs(t, err, outbox.ErrCommitUnknown)
			})
		}
	}
}

// TestSavepointThatCannotBeUndone breaks the connection while a nested transaction is undone whose failure the handler
// tolerates. It returns nil, but nothing of it is committed.
func TestSavepointThatCannotBeUndone(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	for _, name := range []string{"pgx", "sql-pgx", "sql-pq"} {
		t.Run(name, func(t *testing.T) {
			err := deliverOverACut(t, name, cutAt{request: undoRequest}, false)
			require.NotErrorIs(t, err, outbox.ErrCommitUnknown)
		})
	}
}

// deliverOverACut delivers a message while the connection breaks, which must fail, and then again. It returns the
// error of the first delivery.
func deliverOverACut(t *testing.T, name string, at cutAt, committed bool) error {
	cut := &cutter{}
	w := newCrashWorld(t, newPgxHandle(t, newDatabase(t)), 1)
	shop, err := newShop(cut.open(t, name, w.h.url))
	require.NoError(t, err)
	handler := func(msg *message.Message) ([]*message.Message, error) {
		return shop.book(msg.Context(), msg.UUID, string(msg.Payload))
	}
	stack := stackFor(t, shop.pub, middleware.StackConfig{
		Inbox: middleware.InboxConfig{Consumer: consumer}, Outbox: middleware.OutboxConfig{Topic: eventsTopic},
	}, nil)
	for i := len(stack) - 1; i >= 0; i-- {
		handler = stack[i](handler)
	}
	deliver := func(id string) error {
		msg := message.NewMessage(id, message.Payload("key-0"))
		produced, err := handler(msg)
		assert.Empty(t, produced)
		return err
	}
	count := func(query string) int { return w.h.count(t, query) }

	require.NoError(t, deliver("order-1"))
	cut.next.Store(&at)
	failure := deliver("order-2")
	require.Nil(t, cut.next.Load(), "nothing was cut")
	require.Error(t, failure)
	booked := 1
	if committed {
		booked = 2
	}
	assert.Equal(t, booked, count(`select count(*) from bookings`))
	assert.Equal(t, booked, count(`select count(*) from inbox where processed_at is not null`))
	w.check("after the cut")

	for range 2 {
		require.NoError(t, deliver("order-2"))
		assert.Equal(t, 2, count(`select count(*) from bookings`))
		assert.Equal(t, 4, count(`select count(*) from outbox`))
		w.check("after the redelivery")
	}
	return failure
}

// cutAt is what a connection breaks at: a request that does not reach the server any more, or an answer
// that the server has given.
type cutAt struct{ request, answer *regexp.Regexp }

var ( // messages of the protocol; Parse or Query with a text, and CommandComplete
	commitRequest = regexp.MustCompile(`(?i)(P[\s\S]{4}\x00|Q[\s\S]{4})commit\x00`)
	undoRequest   = regexp.MustCompile(`(?i)(P[\s\S]{4}\x00|Q[\s\S]{4})rollback to savepoint`)
	commitAnswer  = regexp.MustCompile(`C[\s\S]{4}COMMIT\x00`)
)

// cutter makes connections of which one breaks when told to.
type cutter struct{ next atomic.Pointer[cutAt] }

func (c *cutter) open(t *testing.T, name, url string) *outbox.DB {
	t.Helper()
	switch name {
	case "pgx":
		return pgxHandle(t, name, url, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DialFunc = c.DialContext
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // the text of COMMIT is sent each time
		}).db
	case "sql-pgx":
		cfg, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		cfg.DialFunc = c.DialContext
		return c.fromSQL(t, sql.OpenDB(stdlib.GetConnector(*cfg)))
	}
	connector, err := pq.NewConnector(url)
	require.NoError(t, err)
	connector.Dialer(c)
	return c.fromSQL(t, sql.OpenDB(connector))
}

func (c *cutter) fromSQL(t *testing.T, db *sql.DB) *outbox.DB {
	t.Cleanup(func() { _ = db.Close() })
	handle, err := outbox.FromSQL(db, outbox.DBConfig{}, nil)
	require.NoError(t, err)
	return handle
}

func (c *cutter) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &cutConn{conn, c}, nil
}

func (c *cutter) Dial(network, addr string) (net.Conn, error) {
	return c.DialContext(context.Background(), network, addr)
}

func (c *cutter) DialTimeout(network, addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return c.DialContext(ctx, network, addr)
}

// now says whether to cut, and does so once.
func (c *cutter) now(data []byte, sign func(*cutAt) *regexp.Regexp) bool {
	at := c.next.Load()
	return at != nil && sign(at) != nil && sign(at).Match(data) && c.next.CompareAndSwap(at, nil)
}

type cutConn struct {
	net.Conn
	cutter *cutter
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.cutter.now(p, func(at *cutAt) *regexp.Regexp { return at.request }) {
		c.Conn.Close()
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.cutter.now(p[:n], func(at *cutAt) *regexp.Regexp { return at.answer }) {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
