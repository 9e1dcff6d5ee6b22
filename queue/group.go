package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/life"
)

// Group handles the stored messages of many databases, as a Dispatcher does for one. One goroutine chooses which
// database has its turn, and all share the handlers' slots. An idle database costs no goroutine and no statement of its
// own. A broken or slow database delays no other, as long as at most 32 polls are slow at a time. Any number of Groups,
// in any number of processes, share the work. It is safe for concurrent use.
type Group struct {
	stores  *Stores
	cfg     GroupConfig
	logger  watermill.LoggerAdapter
	news    chan struct{} // capacity 1: there may be messages, or a slot is free
	running chan struct{}
	life    *life.Life
	work    sync.WaitGroup
	ctx     context.Context // of Run; set before running is closed

	mu          sync.Mutex
	ended       bool
	databases   map[string]*database // by key
	pools       map[any]*pool        // by connection pool
	workers     []*worker            // of awake databases, sorted by key
	slots       slots
	polls       int          // not slow
	slow        int          // slow polls and slow maintenance
	maintaining int          // maintenance that is not slow
	passed      time.Time    // since when the Selection has been waiting for a database; zero = it is not
	last        fleet.Status // of the poll that ended last

	wokenMu sync.Mutex // taken under locks of handles, so nothing is called under it
	woken   []*database
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
	return &Group{
		stores: stores, cfg: cfg, logger: logger,
		news: make(chan struct{}, 1), running: make(chan struct{}), life: life.New(),
		slots:     newSlots(cfg.Dispatcher.Concurrency),
		databases: map[string]*database{}, pools: map[any]*pool{},
	}, nil
}

// Run handles messages until ctx ends or Close is called, and returns nil when everything that it started has ended. It
// waits for the first discovery of the fleet, which must run too and end later: outbox.Run(ctx, router, group,
// databases). Errors of a database are logged and retried. It returns outbox.ErrRunning or outbox.ErrClosed.
func (g *Group) Run(ctx context.Context) error {
	ctx, end, err := g.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	select {
	case <-ctx.Done():
	case <-g.stores.fleet.Running():
		g.ctx = ctx
		g.sync(ctx)
		close(g.running)
		g.choose(ctx)
	}
	g.mu.Lock()
	g.ended = true
	for _, t := range g.databases {
		g.remove(t)
	}
	g.mu.Unlock()
	g.work.Wait()
	return nil
}

// Running returns a channel that is closed when the databases of the first discovery are being polled.
func (g *Group) Running() <-chan struct{} { return g.running }

// Close ends Run and waits for it to return. It may be called several times, concurrently, but not by a handler.
func (g *Group) Close() error {
	g.life.Close()
	return nil
}

// Drain handles the ready messages of all known databases and returns when none are left. If Run is not running, it
// runs the group for that time, after which the group cannot be run again. Its error names the databases that could not
// be drained; the others are drained all the same. It also returns the error of ctx, or outbox.ErrClosed.
func (g *Group) Drain(ctx context.Context) error {
	return g.life.While(ctx, g.Run, g.running, func() error { return g.drainAll(ctx) })
}

func (g *Group) drainAll(ctx context.Context) error {
	g.mu.Lock()
	keys := slices.Sorted(maps.Keys(g.databases))
	g.mu.Unlock()
	errs := make([]error, len(keys))
	var draining sync.WaitGroup
	for i, key := range keys {
		draining.Go(func() {
			if err := g.drainOne(ctx, key); err != nil && ctx.Err() == nil {
				errs[i] = fmt.Errorf("database %q: %w", key, err)
			}
		})
	}
	draining.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// drainOne keeps a database awake and waits until it has nothing left.
func (g *Group) drainOne(ctx context.Context, key string) error {
	for {
		g.mu.Lock()
		t := g.databases[key]
		if t == nil || g.ended {
			g.mu.Unlock()
			return nil // it was removed
		}
		g.wake(g.ctx, t)
		m := t.awake
		g.mu.Unlock()
		if m == nil {
			return outbox.ErrClosed
		}
		g.signal()
		err := m.d.loop.drain(ctx)
		if !errors.Is(err, outbox.ErrClosed) || g.ctx.Err() != nil || ctx.Err() != nil {
			return err
		}
		<-m.over // it fell asleep just before
	}
}

// choose is the goroutine that chooses whose turn it is, until ctx ends.
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
		timer.Reset(g.startPolls(ctx))
	}
}

// startPolls starts the polls for which there is room, and returns how long to sleep unless a signal arrives.
func (g *Group) startPolls(ctx context.Context) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now() // only after ended turns are recorded: those databases may be next again
	g.wakeSignalled(ctx)
	wait := min(g.startChecks(ctx, now), g.startMaintenance(now))
	for {
		ready, list, in := g.candidates(now)
		wait = min(wait, in)
		if len(ready) == 0 {
			g.passed = time.Time{}
			return wait
		}
		t := ready[g.next(list)]
		if t.busy {
			if g.passed.IsZero() {
				g.passed = now
			}
			if left := slowPoll - now.Sub(g.passed); left > 0 {
				return min(wait, left)
			}
			t = ready[longestAgo(list)]
		}
		g.passed = time.Time{}
		g.poll(t, now)
	}
}

// candidates returns the turns that may begin now, and those of databases that may have messages but no room for a turn
// at the moment, unless all are of that kind. In is how long to wait if there are none. mu must be held.
func (g *Group) candidates(now time.Time) (ready []turn, list []fleet.Status, in time.Duration) {
	most := g.cfg.Dispatcher.Concurrency
	if len(g.databases) > 1 {
		most = max(1, most/2)
	}
	in, idle := noWait, false
	for _, m := range g.workers {
		suspect := m.suspect()
		if m.leaving || m.polling && (m.slow || suspect) {
			continue // the end of its turn signals
		}
		t := turn{m: m, busy: true}
		if !m.polling {
			if suspect && g.slow >= slowPolls || !suspect && (g.polls >= g.cfg.MaxPolls || g.slots.free() == 0) {
				continue
			}
			var wait time.Duration
			if t, wait = m.turn(now, min(g.slots.free(), m.db.pool.room()), most); t.m == nil || t.busy {
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
		i = g.cfg.Selection.Next(list, g.last)
		return nil
	})
	if err != nil || i < 0 || i >= len(list) {
		return longestAgo(list)
	}
	return i
}

// longestAgo returns the database that is not Busy and whose last turn is the longest ago.
func longestAgo(list []fleet.Status) int { return fleet.RoundRobin().Next(list, fleet.Status{}) }
