//go:build unix

package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
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

// awaitShares waits until two workers share the lanes.
func (w *crashWorld) awaitShares(a, b *worker) {
	w.t.Helper()
	eventually(w.t, func() bool { return w.lanes(a) == 32 && w.lanes(b) == 32 }, "both workers have their lanes")
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
			w.awaitShares(victim, other)
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

// TestStoppedForwarderDisturbsNothing stops one of two forwarders in the middle of its publishes for longer than its
// lease, lets the other one take over, and resumes it with results of its publishes: successes and failures, of
// messages that arrived before, arrive now or never arrive. Whatever the other one is doing by then, no key may lose
// its order or get stuck.
func TestStoppedForwarderDisturbsNothing(t *testing.T) {
	extended(t)
	parallel(t)
	for _, handle := range anyOf(t, "pgx", "sql-pq") {
		t.Run(handle, func(t *testing.T) {
			t.Parallel()
			stopForwarders(t, childConfig{Handle: handle, LeaseTTL: time.Second})
		})
	}
}

func stopForwarders(t *testing.T, cfg childConfig) {
	const keys = 80 // each forwarder's lanes have half of them
	w := newCrashWorld(t, newPgxHandle(t, newDatabase(t)), keys)
	w.broker.answers(holding)
	victim, other := w.start(cfg), w.start(cfg)
	orders := 0
	placeAll := func() { // one order for each key
		var placing sync.WaitGroup
		for part := range 4 {
			placing.Go(func() {
				for key := part; key < keys; key += 4 {
					if err := w.placeOne(fmt.Sprintf("order-%d-%d", orders, key), key); err != nil {
						w.fail("place an order: %v", err)
					}
				}
			})
		}
		placing.Wait()
		orders++
	}

	// The state of the other forwarder when the stopped one resumes.
	stands := []string{
		"has just taken the lanes",
		"is publishing the same messages",
		"is done",
	}
	const some = 20 // duplicates needed to show that messages of the stopped one arrived
	for round := 0; round < rounds(1, 20) || w.broker.duplicates() <= some && round < 10; round++ {
		for _, stand := range stands {
			name := fmt.Sprintf("round %d, the other one %s", round, stand)
			w.awaitShares(victim, other)
			victim.holdCopies()
			placeAll()
			placeAll()
			eventually(t, func() bool { return len(victim.heldKeys()) >= 20 }, "%s: publishes in flight", name)
			victim.signal(syscall.SIGSTOP)
			stopped := victim.heldKeys()
			if stand == "is publishing the same messages" {
				other.holdCopies()
			}
			eventually(t, func() bool { return w.lanes(other) == 64 }, "%s: lanes taken over", name)
			switch stand {
			case "is publishing the same messages":
				eventually(t, func() bool {
					held := other.heldKeys()
					for key := range stopped {
						if !held[key] {
							return false
						}
					}
					return true
				}, "%s: the same publishes in flight", name)
			case "is done":
				w.settle(name)
			}

			refused := victim.timesAt("refused") + victim.timesAt("published")
			n := victim.releaseCopies(answerAnyhow)
			victim.signal(syscall.SIGCONT)
			eventually(t, func() bool { return victim.timesAt("refused")+victim.timesAt("published") >= refused+n },
				"%s: it has its results", name)
			if stand == "is publishing the same messages" {
				w.awaitRenewal(victim) // its results are written, or never will be
				other.releaseCopies(answerWell)
			}
			placeAll()
			w.settle(name)
			w.check(name)
			victim, other = other, victim
		}
	}
	t.Logf("%d orders, %d copies of messages", orders*keys, w.broker.duplicates())
	assert.Greater(t, w.broker.duplicates(), some, "the stopped forwarders' messages did not arrive: "+
		"the test has shown nothing")
	victim.shutDown()
	other.shutDown()
}

// answerAnyhow is an answer to a held publish: the message arrives or not, and the publish succeeds or fails.
func answerAnyhow(_ Copy, arrive func()) error {
	switch rand.IntN(8) {
	case 0, 1, 2:
		arrive()
		return nil
	case 3:
		arrive()
		return errors.New("rejected, but it has arrived")
	case 4, 5:
		return errors.New("rejected")
	case 6:
		return errors.New("unavailable")
	}
	return errors.New("permanent")
}

// answerWell is like answerAnyhow, but the broker finally accepts the message.
func answerWell(_ Copy, arrive func()) error {
	if rand.IntN(2) == 0 {
		return errors.New("rejected")
	}
	arrive()
	return nil
}

// awaitRenewal waits until a worker has renewed its lease twice.
func (w *crashWorld) awaitRenewal(p *worker) {
	w.t.Helper()
	expiry := func() string {
		return value[string](w.t, w.h, `select expires_at::text from outbox_forwarders where name = $1`, p.cfg.Name)
	}
	for range 2 {
		before := expiry()
		eventually(w.t, func() bool { return expiry() != before }, "%s renews its lease", p.cfg.Name)
	}
	require.False(w.t, p.ended())
}
