package forwarder

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/idle"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// database is a database of a Group. It is asleep, waits in Group.queue, or is in Group.active, where its forwarder runs.
// All fields are guarded by Group.mu.
type database struct {
	*scheduler.Database[*database]

	idle    idle.Tracker
	breaker trouble.Breaker
	pollAt  time.Time            // no poll before
	allAt   time.Time            // next poll of everything
	ofAll   coordinator.Throttle // of polls of everything,
	ofOne   coordinator.Throttle // and of other polls
	dueAt   time.Time            // when the next message is due; zero = none
	tidyAt  time.Time            // when to start it for a clean-up, even without messages
	topics  []string             // of its forwarder
	drains  []wanted

	// While it is in Group.active.
	engine  *engine // nil while it starts
	started time.Time
	stop    chan struct{} // closed when others need its slot, or it was removed
	stopped bool
	changed time.Time // when it was started, or told to stop
}

// wanted is a waiting call of Drain.
type wanted struct {
	after int64 // only polls that begin later count
	done  chan error
}

// join must be called with mu held.
func (g *Group) join(d *scheduler.Database[*database]) (*database, error) {
	// Cause: one outbox of the Group cannot be read.
	// Cure: the Group retries it.
	breaker := trouble.Breaker{What: "draining the outbox", Logger: d.Logger}
	own := &database{Database: d, breaker: breaker, topics: g.cfg.Forwarder.Topics}
	own.tidyAt = time.Now().Add(scheduler.Jitter(g.tidyInterval()))
	g.setWakeAt(own)
	return own, nil
}

// setWakeAt must be called when dueAt or tidyAt has changed. mu must be held.
func (g *Group) setWakeAt(d *database) {
	at := d.tidyAt
	if !d.dueAt.IsZero() && d.dueAt.Before(at) {
		at = d.dueAt
	}
	g.scheduler.WakeAt(d.Database, at)
}

// removed must be called with mu held.
func (g *Group) removed(d *database) {
	if g.active[d] {
		d.end()
	} else {
		d.answer(g.scheduler.Gone())
	}
}

// end stops its forwarder. mu must be held.
func (d *database) end() {
	if !d.stopped {
		d.stopped, d.changed = true, time.Now()
		close(d.stop)
	}
}

// answer ends all calls of Drain. mu must be held.
func (d *database) answer(err error) { d.answerBefore(1<<62, err) }

// answerBefore answers the calls that were made before a poll began. mu must be held.
func (d *database) answerBefore(poll int64, err error) {
	left := d.drains[:0]
	for _, w := range d.drains {
		if w.after < poll {
			w.done <- err
		} else {
			left = append(left, w)
		}
	}
	d.drains = left
}

// broken skips a database for a while, unless a call of Drain waits for it. mu must be held.
func (g *Group) broken(d *database, err error, now time.Time) {
	d.breaker.Failed(now, err)
	if len(d.drains) == 0 {
		d.SkipUntil = d.breaker.Until()
	}
}
