//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crashSteps are all steps between the start of the handler and the settled row, in their order.
var crashSteps = []string{
	"begun",       // after BEGIN
	"claimed",     // after the inbox row
	"written",     // after the business write, a message that was published, and a savepoint that was undone
	"captured",    // after the returned message was taken, before COMMIT
	"committed",   // before the ack
	"rolled back", // a failed handler's transaction, before the failure is recorded or the message declared dead
	"dead",        // recorded as dead, before the ack
	"lanes",       // lanes acquired, nothing read
	"read",        // before any publish
	"publishing",  // before the broker has the message
	"landed",      // the broker has it and has not replied
	"published",   // the broker has replied
	"failed",      // the failed attempt is recorded
	"settled",
}

// TestKilledAtEveryStep kills worker processes at every step and at random moments, next to others or alone. The next
// one finishes their work.
func TestKilledAtEveryStep(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, handle := range anyOf(t, "pgx", "sql-pgx", "sql-pq", "pgbouncer") {
		t.Run(handle, func(t *testing.T) {
			t.Parallel()
			killAtEveryStep(t, childConfig{Handle: handle, Handlers: true, LeaseTTL: time.Second})
		})
	}
}

func killAtEveryStep(t *testing.T, cfg childConfig) {
	w := newCrashWorld(t, newPgxHandle(t, newDatabase(t)), 60)
	w.broker.answers(flaky)
	stop := w.source.feed(10 * time.Millisecond)
	defer stop()

	companion := w.start(cfg)
	for pass := range rounds(1, 20) {
		for i, step := range crashSteps {
			skip := pass % 5
			if step == "lanes" { // it may happen only once
				skip = 0
			}
			victim := w.startFor(step, skip, cfg)
			victim.await(victim.reached, "at "+step)
			victim.kill()
			if i%3 == 2 { // no process is left
				companion.kill()
				w.check("all killed at " + step)
				companion = w.start(cfg)
			}
			w.check("killed at " + step)
		}
	}
	for i := range rounds(2, 200) {
		victim := w.start(cfg)
		<-time.After(rand.N(time.Second))
		victim.kill()
		w.check(fmt.Sprintf("killed at random, %d", i))
	}
	stop()
	w.finish()
	id := value[string](t, w.h, `select id::text from outbox_forwarders where name = $1`, companion.cfg.Name)
	companion.shutDown()
	if n := w.h.count(t, `select count(*) from outbox_lanes where owner::text = $1`, id); n != 0 {
		t.Errorf("%d lanes were not released", n)
	}
}

// place books orders at a steady pace, directly in the database, until stop is called.
func (w *crashWorld) place(writers int, every time.Duration) (stop func()) {
	stopped := make(chan struct{})
	var writing sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-stopped:
					return
				case <-tick.C:
				}
				if err := w.placeOne(fmt.Sprintf("order-%d-%d", i, n), rand.IntN(w.source.keys)); err != nil {
					w.fail("place an order: %v", err)
					return
				}
			}
		})
	}
	return sync.OnceFunc(func() { close(stopped); writing.Wait() })
}

func (w *crashWorld) placeOne(order string, key int) error {
	return w.shop.place(w.t.Context(), order, fmt.Sprintf("key-%d", key))
}

// TestKilledForwarderIsReplacedInTime kills one of two forwarders under load.
func TestKilledForwarderIsReplacedInTime(t *testing.T) {
	parallel(t)
	const lease = 2 * time.Second
	shown, want := 0, rounds(1, 10)
	for round := 0; shown < want && !t.Failed(); round++ {
		require.Less(t, round, 5*want, "nothing had to wait for the dead forwarder: the test has shown nothing")
		handle := []string{"pgx", "sql-pq", "sql-pgx"}[round%3]
		t.Run(fmt.Sprintf("%d %s", round, handle), func(t *testing.T) {
			w := newCrashWorld(t, newPgxHandle(t, newDatabase(t)), 200)
			victim := w.start(childConfig{Handle: handle, LeaseTTL: lease})
			other := w.start(childConfig{Handle: handle, LeaseTTL: lease})
			eventually(t, func() bool { return w.lanes(victim) == 32 && w.lanes(other) == 32 }, "both have their lanes")
			stop := w.place(8, 40*time.Millisecond)
			defer stop()
			eventually(t, func() bool { return victim.timesAt("published") > 100 && other.timesAt("published") > 100 },
				"both publish")

			victim.kill()
			<-time.After(lease / 8) // let the load go on for a while
			stop()
			w.settle("after the kill")

			var last time.Time
			for _, at := range w.broker.arrivals() {
				if at.After(last) {
					last = at
				}
			}
			took := last.Sub(victim.killedAt)
			t.Logf("%d messages, the last one %s after the kill", len(w.broker.arrivals()), took.Round(time.Millisecond))
			assert.Less(t, took, lease+patience)
			if took > lease/3 {
				shown++
			}
			w.check("after the kill")
			assert.Equal(t, 64, w.lanes(other))
			other.shutDown()
		})
	}
}
