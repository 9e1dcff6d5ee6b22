//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"
)

// unevenConn delays writes by a random time between half of most and most.
type unevenConn struct {
	net.Conn
	most time.Duration
}

func (c unevenConn) Write(p []byte) (int, error) {
	time.Sleep(c.most/2 + rand.N(c.most/2))
	return c.Conn.Write(p)
}

// TestAShortLeaseGoesOn: with a lease of 1 s each statement takes 150 to 300 ms, and the forwarders are stopped for up
// to 3 s, so leases keep expiring, while rows are inserted directly. It is slow but never stops: in each round all
// pending messages are published. OUTBOX_LONG runs 20 rounds.
func TestAShortLeaseGoesOn(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	w := newCrashWorld(t, h, 1)
	w.broker.answer = func(*worker, Copy, func()) error { return nil }
	const rows = 100
	for i := range rows {
		h.publish(t, "orders", fmt.Sprint(i%25), fmt.Sprint(i))
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
			stops++
			f := forwarders[rand.IntN(len(forwarders))]
			_ = f.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(rand.N(3 * time.Second)) // as long as a machine might be suspended
			_ = f.cmd.Process.Signal(syscall.SIGCONT)
			select {
			case <-over:
				return
			case <-time.After(rand.N(3 * time.Second)):
			}
		}
	}()
	pending := func() int { return h.count(t, "select count(*) from outbox where published_at is null") }
	var took []time.Duration
	for round := range rounds(1, 20) {
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
}
