package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/life"
)

// Group handles what is stored in many databases, as a Dispatcher does for one: one goroutine chooses which database has its
// turn, and all of them share the handlers' places. A database that is broken, slow or gone delays no other. Any number of
// Groups, in any number of processes, share the work. It is safe for concurrent use.
type Group struct {
	stores  *Stores
	cfg     GroupConfig
	logger  watermill.LoggerAdapter
	news    chan struct{} // capacity 1: there may be messages, or a place is free
	running chan struct{}
	life    *life.Life
	work    sync.WaitGroup

	mu      sync.Mutex
	ended   bool
	members []*member // sorted by key
	leaving map[*member]bool
	taken   int // places
	polls   int // that are not slow
	slow    int
	last    fleet.Status // of the poll that has ended last
}

// NewGroup makes a Group. It does no I/O. It returns an error for nil stores, or one that names every field at fault. A nil
// logger is that of each database's handle.
func NewGroup(stores *Stores, cfg GroupConfig, logger watermill.LoggerAdapter) (*Group, error) {
	cfg.setDefaults()
	if stores == nil {
		return nil, errors.Join(errors.New("queue: no stores: pass what NewStores made"), cfg.validate())
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Group{
		stores: stores, cfg: cfg, logger: logger,
		news: make(chan struct{}, 1), running: make(chan struct{}), life: life.New(), leaving: map[*member]bool{},
	}, nil
}

// Run handles messages until ctx is over or Close is called, and then returns nil once everything that it started has ended,
// as Dispatcher.Run does. It waits for the first discovery of the fleet, which somebody else runs, and which should end later:
// outbox.Run(ctx, router, group, databases). Errors of a database are logged and tried again. It returns outbox.ErrRunning or
// outbox.ErrClosed.
func (g *Group) Run(ctx context.Context) error {
	ctx, end, err := g.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	select {
	case <-ctx.Done():
	case <-g.stores.fleet.Running():
		g.sync(ctx)
		close(g.running)
		g.choose(ctx)
	}
	g.mu.Lock()
	g.ended = true
	for _, m := range g.members {
		g.leave(m)
	}
	g.members = nil
	g.mu.Unlock()
	g.work.Wait()
	return nil
}

// Running returns a channel that is closed when the databases of the first discovery are watched.
func (g *Group) Running() <-chan struct{} { return g.running }

// Close ends Run and waits for it to return. It may be called several times, by several goroutines, but not by a handler,
// which Run waits for.
func (g *Group) Close() error {
	g.life.Close()
	return nil
}

// Drain handles what is ready in all databases that are known, as Dispatcher.Drain does for one, and returns when nothing is left.
// It runs the group for that time unless Run does already; then the group is spent. Databases that could not be drained are
// named in its error; they keep no other from being drained. It also returns the error of ctx, or outbox.ErrClosed.
func (g *Group) Drain(ctx context.Context) error {
	return g.life.While(ctx, g.Run, g.running, func() error { return g.drainAll(ctx) })
}

func (g *Group) drainAll(ctx context.Context) error {
	g.mu.Lock()
	members := append([]*member(nil), g.members...)
	g.mu.Unlock()
	errs := make([]error, len(members))
	var draining sync.WaitGroup
	for i, m := range members {
		draining.Go(func() {
			err := m.d.loop.drain(ctx)
			if err != nil && ctx.Err() == nil && !m.gone() {
				errs[i] = fmt.Errorf("database %q: %w", m.status.Key, err)
			}
		})
	}
	draining.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// choose is the goroutine that chooses whose turn it is, until ctx is over.
func (g *Group) choose(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.sync(ctx)
		case <-timer.C:
		case <-g.news:
		}
		timer.Reset(g.startPolls())
	}
}

// startPolls starts what there is room for, and returns how long nothing else will be unless somebody signals.
func (g *Group) startPolls() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now() // not before the end of the turns that are over: theirs may be next again
	for {
		free := g.cfg.Dispatcher.Concurrency - g.taken
		if free <= 0 {
			return noWait
		}
		most := g.cfg.Dispatcher.Concurrency
		if len(g.members) > 1 {
			most = max(1, most/2)
		}
		var ready []turn
		var idle []fleet.Status
		wait := noWait
		for _, m := range g.members {
			suspect := m.breaker.Failures() > 0
			if m.leaving || m.polling || suspect && g.slow >= slowPolls || !suspect && g.polls >= g.cfg.MaxPolls {
				continue // its end signals
			}
			t, in := m.turn(now, free, most)
			if t.line == nil {
				wait = min(wait, in)
				continue
			}
			ready, idle = append(ready, t), append(idle, m.status)
		}
		if len(ready) == 0 {
			return wait
		}
		g.poll(ready[g.next(idle)], now)
	}
}

// next asks the Selection.
func (g *Group) next(idle []fleet.Status) (i int) {
	err := guarded(func() error {
		i = g.cfg.Selection.Next(idle, g.last)
		return nil
	})
	if err != nil || i < 0 || i >= len(idle) {
		return 0
	}
	return i
}
