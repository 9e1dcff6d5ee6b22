package forwarder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/idle"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// Cause: one outbox of the Group cannot be read.
var errCannotRead = errors.New("reading failed for 10s: see the error logged before")

// run runs the forwarder of a database until it is idle, and returns the database to the scheduler.
func (g *Group) run(ctx context.Context, d *database) {
	err := g.forward(ctx, d)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.active, d)
	d.engine = nil
	d.pollAt, d.allAt, d.dueAt = time.Time{}, time.Time{}, time.Time{}
	g.setWakeAt(d)
	switch {
	case d.Removed():
		d.answer(g.scheduler.Gone())
	case ctx.Err() != nil:
	case err != nil:
		d.answer(err)
		g.broken(d, err, time.Now())
	default:
		d.breaker.Worked()
	}
	g.scheduler.Sleep(d.Database, 0)
}

// forward runs a forwarder. It returns an error if the forwarder did not work as it should.
func (g *Group) forward(ctx context.Context, d *database) error {
	f, err := g.forwarder(ctx, d)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- f.Run(ctx)
	}()
	g.mu.Lock()
	d.engine = f.engine
	g.mu.Unlock()
	failed := g.watch(ctx, d, f.engine)
	stop()
	return errors.Join(failed, <-ended)
}

// watch returns when the forwarder of a database has ended or must end, with an error if it is failing. Meanwhile it
// answers calls of Drain. Before a forwarder ends because it is idle, it makes a clean-up that is due.
func (g *Group) watch(ctx context.Context, d *database, e *engine) error {
	check := time.NewTicker(min(checkInterval, g.cfg.IdleAfter))
	defer check.Stop()
	drained := make(chan error, 1)
	draining := 0              // calls of Drain that wait for it
	var cleaning chan struct{} // closed at the end of the clean-up in flight
	var idleAfter time.Duration
	var cleanUp bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.stop:
			return nil
		case err := <-drained:
			if !errors.Is(err, outbox.ErrClosed) {
				g.drained(d, draining, err)
			}
			draining = 0
			continue
		case <-cleaning:
			g.cleanedUp(d)
			cleaning, cleanUp = nil, false
		case <-check.C:
			if cleaning == nil {
				idleAfter, cleanUp = g.idleAfter(d)
			}
		}
		if draining == 0 {
			g.mu.Lock()
			draining = len(d.drains)
			g.mu.Unlock()
			if draining > 0 {
				go func() { drained <- e.drain(ctx, false) }()
			}
		}
		h := e.health()
		switch {
		case h.Failing > failingFor:
			return errCannotRead
		case draining > 0 || cleaning != nil || h.Quiet < idleAfter:
		case cleanUp:
			cleaning = g.cleanUp(d, e)
		default:
			return nil
		}
	}
}

// idleAfter returns the idle time after which the forwarder of a database is stopped, and whether a clean-up is due.
func (g *Group) idleAfter(d *database) (after time.Duration, cleanUp bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if after = g.cfg.IdleAfter; !d.started.Before(d.cleanUpAt) {
		after = 1 // it was started for the clean-up
	}
	return after, !time.Now().Before(d.cleanUpAt)
}

// cleanUp makes the cleaner work immediately, and returns a channel that is closed when it is done. It returns nil if
// the cleaner is at work anyway.
func (g *Group) cleanUp(d *database, e *engine) chan struct{} {
	done := make(chan struct{})
	select {
	case e.cleanUpNow <- done:
	default:
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	d.cleaning = time.Now()
	return done
}

// cleanedUp sets the time of the next clean-up. One that was cut off stays due.
func (g *Group) cleanedUp(d *database) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d.cleanUpAt, d.cleaning = time.Now().Add(scheduler.Jitter(g.cleanUpInterval())), time.Time{}
}

func (g *Group) cleanUpInterval() time.Duration { return cleanUpFactor * g.cfg.Forwarder.CleanInterval }

// drained answers the first calls of Drain.
func (g *Group) drained(d *database, calls int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range d.drains[:calls] {
		w.done <- err
	}
	d.drains = slices.Clone(d.drains[calls:])
}

// forwarder makes the forwarder of a database.
func (g *Group) forwarder(ctx context.Context, d *database) (f *Forwarder, err error) {
	cfg, pub := g.cfg.Forwarder, g.pub
	cfg.Topics, cfg.Routes = slices.Clone(cfg.Topics), maps.Clone(cfg.Routes)
	if g.cfg.Configure != nil {
		ctx, cancel := context.WithTimeout(ctx, g.cfg.Forwarder.QueryTimeout)
		defer cancel()
		guard(func() { err = g.cfg.Configure(ctx, d.Key, &cfg, &pub) }, func(panicked error) { err = panicked })
		if err != nil {
			return nil, fmt.Errorf("GroupConfig.Configure: %w", err)
		}
		cfg.DisableListen = true
		g.mu.Lock()
		d.topics = cfg.Topics
		g.mu.Unlock()
	}
	return newForwarder(d.Handle.DB(), pub, cfg, true, g.logger)
}

const stuckAfter = time.Second

// health returns how long each condition of the engine has lasted.
func (e *engine) health() (h coordinator.Health) {
	e.step(func(now time.Time, c *coordinator.Coordinator) { h = c.Health(now) })
	return h
}

// stuck reports whether the forwarder of a database waits for the database, which answers slowly or not at all. mu must
// be held.
func (d *database) stuck(now time.Time) bool {
	if d.engine != nil && !d.stopped {
		select {
		case <-d.engine.running:
			h := d.engine.health()
			return h.Reading > stuckAfter || h.Failing > 0
		default:
		}
	}
	return now.Sub(d.changed) > stuckAfter // since it was started, or told to stop
}

// database is a database of a Group. It is asleep, waits in Group.queue, or is in Group.active, where its forwarder
// runs. All fields are guarded by Group.mu.
type database struct {
	*scheduler.Database[*database]

	idle      idle.Tracker
	breaker   trouble.Breaker
	pollAt    time.Time            // no poll before
	allAt     time.Time            // next poll of everything
	ofAll     coordinator.Throttle // of polls of everything,
	ofOne     coordinator.Throttle // and of other polls
	dueAt     time.Time            // when the next message is due; zero = none
	cleanUpAt time.Time            // when to start it for a clean-up, even without messages
	topics    []string             // of its forwarder; empty = all, or it has not been configured yet
	drains    []wanted

	// While it is in Group.active.
	engine   *engine // nil while it starts
	started  time.Time
	cleaning time.Time     // when the clean-up in flight began; zero = none
	stop     chan struct{} // closed when others need its slot, or it was removed
	stopped  bool
	changed  time.Time // when it was started, or told to stop
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
	own := &database{Database: d, breaker: breaker}
	if g.cfg.Configure == nil { // otherwise the topics are known when it has run
		own.topics = g.cfg.Forwarder.Topics
	}
	own.cleanUpAt = time.Now().Add(scheduler.Jitter(g.cleanUpInterval()))
	g.setWakeAt(own)
	return own, nil
}

// setWakeAt must be called when dueAt or cleanUpAt has changed. mu must be held.
func (g *Group) setWakeAt(d *database) {
	at := d.cleanUpAt
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
