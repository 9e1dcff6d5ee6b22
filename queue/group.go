package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
)

// Group handles the stored messages of many databases, as a Dispatcher does for one. One goroutine chooses whose turn
// it is, and all databases share the handlers' slots. An idle database needs no goroutine and no statement of its own.
// A broken or slow database does not delay others, as long as at most 32 polls are slow at a time. Any number of
// Groups, in any number of processes, share the work. It is safe for concurrent use.
type Group struct {
	stores    *Stores
	cfg       GroupConfig
	logger    watermill.LoggerAdapter
	scheduler *scheduler.Scheduler[*database]

	mu          sync.Mutex
	workers     []*worker // of awake databases, sorted by key
	slots       slots
	polls       *scheduler.Slots
	maintaining *scheduler.Slots
	// waitingSince is when the Selection began to wait for a database; zero if it is not waiting.
	waitingSince time.Time
	last         fleet.Status // of the last poll that ended
}

// NewGroup makes a Group. It does no I/O. It returns an error for nil stores, or one that names every invalid field. If
// logger is nil, the logger of each handle is used.
func NewGroup(stores *Stores, cfg GroupConfig, logger watermill.LoggerAdapter) (*Group, error) {
	cfg.setDefaults()
	if stores == nil {
		return nil, errors.Join(errors.New("queue: no stores: pass the result of NewStores"), cfg.validate())
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Group{stores: stores, cfg: cfg, logger: logger, slots: newSlots(cfg.Dispatcher.Concurrency)}
	g.scheduler = scheduler.New(scheduler.Config[*database]{
		Fleet: stores.fleet, Logger: logger, Mu: &g.mu, Polls: cfg.MaxPolls,
		PollInterval: cfg.Dispatcher.PollInterval, MaxPollInterval: pollGrowth * cfg.Dispatcher.PollInterval,
		Concerns: func(n core.Notification) bool { return n.Queue },
		Join:     g.join, Poll: g.pollSleeping, Woken: g.woken, Removed: g.removed, Pass: g.pass,
	})
	g.polls, g.maintaining = g.scheduler.Polls(), g.scheduler.NewSlots(maxMaintained)
	return g, nil
}

// Run handles messages until ctx ends or Close is called, and returns nil when everything that it started has ended. It
// waits for the first discovery of the fleet, which must run too and end later: outbox.Run(ctx, router, group,
// databases). Errors of a database are logged and retried. It returns outbox.ErrRunning or outbox.ErrClosed.
func (g *Group) Run(ctx context.Context) error { return g.scheduler.Run(ctx) }

// Running returns a channel that is closed when the databases of the first discovery are being polled.
func (g *Group) Running() <-chan struct{} { return g.scheduler.Running() }

// Close ends Run and waits for it to return. It may be called several times, concurrently, but not by a handler.
func (g *Group) Close() error {
	g.scheduler.Close()
	return nil
}

// Drain handles the ready messages of all known databases and returns when none are left. If Run is not running, Drain
// runs the group meanwhile, and it cannot be run again. Its error names the databases that could not be drained; the
// others are drained anyway. It also returns the error of ctx, or outbox.ErrClosed.
func (g *Group) Drain(ctx context.Context) error { return g.scheduler.Drain(ctx, g.drainOne) }

// drainOne keeps a database awake and waits until it is empty.
func (g *Group) drainOne(ctx context.Context, t *database) error {
	for {
		g.mu.Lock()
		if err := g.scheduler.Gone(); err != nil || t.Removed() {
			g.mu.Unlock()
			return err
		}
		g.scheduler.Wake(t.Database)
		m := t.awake
		g.mu.Unlock()
		if m == nil {
			return outbox.ErrClosed
		}
		g.scheduler.Signal()
		err := m.d.loop.drain(ctx)
		if !errors.Is(err, outbox.ErrClosed) || ctx.Err() != nil {
			return err
		}
		<-m.over // it fell asleep just before
	}
}

// pass starts maintenance and as many polls as there are slots. It returns how long to sleep unless a signal arrives.
// mu must be held.
func (g *Group) pass(_ context.Context, now time.Time) time.Duration {
	wait := g.startMaintenance(now)
	for {
		ready, list, in := g.candidates(now)
		wait = min(wait, in)
		if len(ready) == 0 {
			g.waitingSince = time.Time{}
			return wait
		}
		t := ready[g.next(list)]
		if t.busy {
			if g.waitingSince.IsZero() {
				g.waitingSince = now
			}
			if left := patience - now.Sub(g.waitingSince); left > 0 {
				return min(wait, left)
			}
			t = ready[longestAgo(list)]
		}
		g.waitingSince = time.Time{}
		g.poll(t, now)
	}
}

// candidates returns the turns that may begin now. It also returns databases that may have messages but no room for a
// turn at the moment, unless that is true of all. If no turn may begin, in is how long to wait. mu must be held.
func (g *Group) candidates(now time.Time) (ready []turn, list []fleet.Status, in time.Duration) {
	most := g.cfg.Dispatcher.Concurrency
	if g.scheduler.Len() > 1 {
		most = max(1, most/2)
	}
	in, idle := noWait, false
	for _, m := range g.workers {
		suspect := m.suspect()
		if m.leaving || m.polling && (m.slow || suspect) {
			continue // the end of its turn sends a signal
		}
		t := turn{m: m, busy: true}
		if !m.polling {
			if !g.polls.Free(suspect) || !suspect && g.slots.free() == 0 {
				continue
			}
			var wait time.Duration
			if t, wait = m.turn(now, min(g.slots.free(), m.db.conns.room()), most); t.m == nil || t.busy {
				in = min(in, wait)
			}
			if t.m == nil {
				continue
			}
		}
		idle = idle || !t.busy
		status := m.status
		status.Busy = t.busy
		ready, list = append(ready, t), append(list, status)
	}
	if !idle {
		return nil, nil, in
	}
	return ready, list, in
}

// next calls the Selection.
func (g *Group) next(list []fleet.Status) (i int) {
	err := guarded(func() error {
		i = g.cfg.Selection(list, g.last)
		return nil
	})
	if err != nil || i < 0 || i >= len(list) {
		return longestAgo(list)
	}
	return i
}

// longestAgo returns the database with the least recent turn that is not Busy.
func longestAgo(list []fleet.Status) int { return fleet.RoundRobin(list, fleet.Status{}) }
