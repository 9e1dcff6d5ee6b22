package integration_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// slowConn delays what is sent.
type slowConn struct {
	net.Conn
	delay *atomic.Int64
}

func (c slowConn) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(c.delay.Load()))
	return c.Conn.Write(p)
}

// newSlowHandle opens a pgx handle whose round trips take longer by what the number says.
func newSlowHandle(t testing.TB, url string, delay *atomic.Int64) handle {
	t.Helper()
	return pgxHandle(t, "slow", url, func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return slowConn{conn, delay}, err
		}
	})
}

// TestALeaseThatRanOutOnASlowDatabaseIsTakenAgain: to join takes about as many round trips as fit into the lease. It is
// given the time that it needs, and begins with all of the lease before it.
func TestALeaseThatRanOutOnASlowDatabaseIsTakenAgain(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	url := newMigratedDatabase(t)
	h := newPgxHandle(t, url)
	var delay atomic.Int64
	cfg := shortLease(quickConfig())
	cfg.CleanInterval = 100 * time.Millisecond
	w := startForwarder(t, newSlowHandle(t, url, &delay), cfg)
	before := numbered("before", 1, 20)
	h.publish(t, "orders", "", before...)
	w.arrives(t, before...)
	delay.Store(int64(150 * time.Millisecond))
	defer delay.Store(0)
	h.exec(t, "update outbox_forwarders set expires_at = clock_timestamp()")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox_forwarders where expires_at > clock_timestamp()") == 1
	}, "it has joined again")
	after := numbered("after", 1, 20)
	h.publish(t, "orders", "", after...)
	h.exec(t, "update outbox set published_at = null where published_at is not null")
	w.arrives(t, after...)
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 0 },
		"all is settled")
}
