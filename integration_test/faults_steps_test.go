//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// crashSteps are all steps between the start of the handler and the settled row, in their order.
var crashSteps = []string{
	"begun",       // after BEGIN
	"claimed",     // after the inbox row
	"written",     // after the business write, a message that was published, and a savepoint that was undone
	"captured",    // after the returned message was taken, before COMMIT
	"committed",   // before the ack
	"rolled back", // of a failed handler, before that is noted or the message put aside
	"dead",        // put aside, before the ack
	"lanes",       // lanes are owned, nothing is read
	"read",        // before any publish
	"publishing",  // before the broker has the message
	"landed",      // the broker has it and has not answered
	"published",   // the broker has answered
	"failed",      // a failed attempt is recorded
	"settled",
}

// TestKilledAtEveryStep kills worker processes at every step and at random moments, while others work beside them or
// not. The next one finds what they left.
func TestKilledAtEveryStep(t *testing.T) {
	extended(t)
	t.Parallel()
	t.Run("worlds", func(t *testing.T) {
		handles := []string{"pgx", "sql-pgx", "sql-pq", "pgbouncer"}
		if !long { // the others in turn: each step takes processes of their own
			handles = []string{"pgx", handles[1+rand.IntN(3)]}
		}
		for _, handle := range handles {
			t.Run(handle, func(t *testing.T) {
				t.Parallel()
				killAtEveryStep(t, childConfig{Handle: handle, Handlers: true, LeaseTTL: time.Second})
			})
		}
	})
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
			if step == "lanes" { // there may be no second time
				skip = 0
			}
			victim := w.startFor(step, skip, cfg)
			victim.await(victim.reached, "at "+step)
			victim.kill()
			if i%3 == 2 { // nobody is left
				companion.kill()
				w.check("all killed at " + step)
				companion = w.start(cfg)
			}
			w.check("killed at " + step)
		}
	}
	for i := range rounds(4, 200) {
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
		t.Errorf("%d lanes were not given back", n)
	}
}
