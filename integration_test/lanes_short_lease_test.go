//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// unevenConn delays what is sent by between half of the most and the most.
type unevenConn struct {
	net.Conn
	most time.Duration
}

func (c unevenConn) Write(p []byte) (int, error) {
	time.Sleep(c.most/2 + rand.N(c.most/2))
	return c.Conn.Write(p)
}

// TestAShortLeaseGoesOn: with a lease of 1 s each statement takes 150 to 300 ms, and the forwarders are stopped for up
// to 3 s, so that leases run out all the time and rows are written by hand meanwhile. It is slow, but it never stops:
// what was made pending is published in each round. OUTBOX_LONG has 20 of them.
func TestAShortLeaseGoesOn(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	w := newCrashWorld(t, h, 1)
	w.broker.answer = func(*worker, Copy, func()) error { return nil }
	const rows = 200
	for i := range rows {
		h.publish(t, "orders", fmt.Sprint(i%50), fmt.Sprint(i))
	}
	var forwarders []*worker
	for range 2 {
		forwarders = append(forwarders, w.start(childConfig{
			Handle: "pgx", LeaseTTL: time.Second, Slow: 300 * time.Millisecond,
		}))
	}
	over, stopped := make(chan struct{}), make(chan int)
	go func() {
		stops := 0
		defer func() { stopped <- stops }()
		for {
			for _, f := range forwarders {
				if rand.IntN(2) == 0 {
					continue
				}
				stops++
				_ = f.cmd.Process.Signal(syscall.SIGSTOP)
				time.Sleep(rand.N(3 * time.Second)) // as long as a machine stands still
				_ = f.cmd.Process.Signal(syscall.SIGCONT)
			}
			select {
			case <-over:
				return
			case <-time.After(rand.N(3 * time.Second)):
			}
		}
	}()
	pending := func() int { return h.count(t, "select count(*) from outbox where published_at is null") }
	var took []time.Duration
	for round := range rounds(2, 20) {
		begun := time.Now()
		h.exec(t, "update outbox set published_at = null where published_at is not null")
		goesOn(t, fmt.Sprint("round ", round, ": all are published"), rows, func() int { return rows - pending() })
		took = append(took, time.Since(begun))
	}
	close(over)
	stops := <-stopped
	slices.Sort(took)
	t.Logf("%d rounds of %d messages with %d stops: p50 %s, slowest %s", len(took), rows, stops,
		took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	require.Positive(t, stops)
}

// TestTheSlowestDatabaseOfALease measures how slow a database may be for a lease: how long it takes until messages that
// were made pending by hand are published, by the time that each statement takes. Up to a third of the lease they all
// are, within the minute in which such rows are looked for; beyond, a line says why they are not.
func TestTheSlowestDatabaseOfALease(t *testing.T) {
	extended(t)
	if !long {
		t.Skip("it only measures: OUTBOX_LONG=1")
	}
	for _, delay := range []time.Duration{50, 100, 200, 300, 500, 700, 900} {
		delay *= time.Millisecond
		url := newMigratedDatabase(t)
		h := newPgxHandle(t, url)
		var slow atomic.Int64
		cfg := shortLease(quickConfig())
		w := startForwarder(t, newSlowHandle(t, url, &slow), cfg)
		messages := numbered("m", 1, 50)
		h.publish(t, "orders", "", messages...)
		w.arrives(t, messages...)
		slow.Store(int64(delay))
		h.exec(t, "update outbox set published_at = null where published_at is not null")
		begun, limit := time.Now(), 2*time.Minute
		left := 1
		for left > 0 && time.Since(begun) < limit {
			time.Sleep(50 * time.Millisecond) // it only measures
			left = h.count(t, "select count(*) from outbox where published_at is null")
		}
		t.Logf("a lease of %s, statements of %s: %d of %d published after %s; lines on the lease: %d", cfg.LeaseTTL, delay,
			len(messages)-left, len(messages), time.Since(begun).Round(100*time.Millisecond), w.log.count("renewing the lease"))
		if delay < cfg.LeaseTTL/3 {
			require.Zero(t, left, "statements of %s", delay)
		} else if left > 0 {
			require.Positive(t, w.log.count("renewing the lease"), "statements of %s", delay)
		}
		slow.Store(0)
		require.NoError(t, w.Forwarder.Close())
	}
}
