// Package scheduler polls the databases of a fleet that have nothing to do, for forwarder.Group and queue.Group.
//
// A database is asleep or awake. Sleeping databases belong to the scheduler: it polls all that share a connection pool
// together, and wakes one when a poll finds work, when it is due, or when this process commits a message there. A
// database that is awake belongs to the scheduler's owner until it calls Sleep. The scheduler does not know how the
// owner uses it, and limits only polls.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/life"
)

const (
	syncInterval = time.Second      // between checks for changes of the fleet
	noWait       = 10 * time.Minute // until a signal arrives
)

// Config configures a Scheduler. D is the owner's data about a database. All fields but Logger are required. Functions
// are called with Mu held and must not block, except Poll.
type Config[D any] struct {
	Fleet  *fleet.Fleet
	Logger watermill.LoggerAdapter // nil = the logger of each handle
	Mu     *sync.Mutex             // guards the scheduler and its owner
	// Polls is the number of pools that are polled concurrently, apart from slow ones.
	Polls int
	// The wait between polls of a pool doubles from PollInterval to MaxPollInterval while none of its databases goes to
	// sleep.
	PollInterval, MaxPollInterval time.Duration
	// Concerns reports whether a commit may mean work.
	Concerns func(core.Notification) bool
	// Join creates the owner's data for a new database, which is asleep.
	Join func(d *Database[D]) (D, error)
	// Poll polls sleeping databases of one pool, and calls Wake for those that have work. An error means that none of
	// them could be polled: they are skipped, for longer each time.
	Poll func(ctx context.Context, list []D) error
	// Woken is called when a database was woken. From then on it belongs to the owner.
	Woken func(ctx context.Context, d D)
	// Removed is called when a database, asleep or awake, has left the fleet or Run ends. Its handle is released when
	// everything started for it with Go has ended.
	Removed func(d D)
	// Pass is called in each pass of the scheduler, and returns how long the owner can wait for the next.
	Pass func(ctx context.Context, now time.Time) time.Duration
}

// Scheduler schedules the databases of a fleet. It is safe for concurrent use; methods marked with mu need Config.Mu.
type Scheduler[D any] struct {
	cfg     Config[D]
	life    *life.Life
	running chan struct{}
	signals chan struct{} // capacity 1
	work    sync.WaitGroup
	ctx     context.Context // of Run; set before running is closed

	// Guarded by Config.Mu.
	ended     bool
	databases map[string]*Database[D]
	pools     map[any]*pool[D]
	next      pools[D]
	waiting   []*pool[D] // pools waiting for a slot
	polls     *Slots
	slow      int // slow uses of all Slots

	wokenMu sync.Mutex // taken under locks of handles, so nothing is called under it
	woken   []*Database[D]
}

// New returns a Scheduler. It does no I/O.
func New[D any](cfg Config[D]) *Scheduler[D] {
	s := &Scheduler[D]{
		cfg: cfg, life: life.New(), running: make(chan struct{}), signals: make(chan struct{}, 1),
		databases: map[string]*Database[D]{}, pools: map[any]*pool[D]{}, ctx: context.Background(),
	}
	s.polls = s.NewSlots(cfg.Polls)
	return s
}

// Run schedules until ctx ends or Close is called, and returns nil when all work has ended. It waits for the first
// discovery of the fleet. It returns outbox.ErrRunning or outbox.ErrClosed.
func (s *Scheduler[D]) Run(ctx context.Context) error {
	ctx, end, err := s.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	select {
	case <-ctx.Done():
	case <-s.cfg.Fleet.Running():
		s.ctx = ctx
		s.Sync()
		close(s.running)
		s.loop(ctx)
	}
	s.cfg.Mu.Lock()
	s.ended = true
	for _, d := range s.databases {
		s.remove(d)
	}
	s.cfg.Mu.Unlock()
	s.work.Wait()
	return nil
}

// Running returns a channel that is closed when the databases of the first discovery are scheduled.
func (s *Scheduler[D]) Running() <-chan struct{} { return s.running }

// Close ends Run and waits for it to return. It may be called several times, concurrently.
func (s *Scheduler[D]) Close() { s.life.Close() }

// Drain calls one for each known database concurrently, and returns when all calls have returned. If Run is not
// running, Drain runs it meanwhile. The error names the databases whose calls failed. Drain also returns the error of
// ctx, or outbox.ErrClosed.
func (s *Scheduler[D]) Drain(ctx context.Context, one func(ctx context.Context, d D) error) error {
	return s.life.While(ctx, s.Run, s.running, func() error {
		s.Sync()
		s.cfg.Mu.Lock()
		all := s.All()
		s.cfg.Mu.Unlock()
		errs := make([]error, len(all))
		var draining sync.WaitGroup
		for i, d := range all {
			draining.Go(func() {
				if err := one(ctx, d.Own); err != nil && ctx.Err() == nil {
					errs[i] = fmt.Errorf("database %q: %w", d.Key, err)
				}
			})
		}
		draining.Wait()
		return errors.Join(append(errs, ctx.Err())...)
	})
}

// Gone returns the error for calls that wait for a database that was removed: nil, or outbox.ErrClosed if Run is
// ending. mu must be held.
func (s *Scheduler[D]) Gone() error {
	if s.ctx.Err() != nil {
		return outbox.ErrClosed
	}
	return nil
}

// Len returns the number of databases. mu must be held.
func (s *Scheduler[D]) Len() int { return len(s.databases) }

// All returns the databases, sorted by key. mu must be held.
func (s *Scheduler[D]) All() []*Database[D] {
	return slices.SortedFunc(maps.Values(s.databases), func(a, b *Database[D]) int {
		return strings.Compare(a.Key, b.Key)
	})
}

// Signals returns the channel that starts a pass when it receives. Its capacity is 1.
func (s *Scheduler[D]) Signals() chan struct{} { return s.signals }

// Signal starts a pass. It never blocks.
func (s *Scheduler[D]) Signal() {
	select {
	case s.signals <- struct{}{}:
	default:
	}
}

// loop is the scheduler's goroutine.
func (s *Scheduler[D]) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.Sync()
		case <-timer.C:
		case <-s.signals:
		}
		timer.Reset(s.pass(ctx))
	}
}

// pass starts what is due, and returns how long to sleep unless a signal arrives.
func (s *Scheduler[D]) pass(ctx context.Context) time.Duration {
	s.wokenMu.Lock()
	woken := s.woken
	s.woken = nil
	s.wokenMu.Unlock()
	s.cfg.Mu.Lock()
	defer s.cfg.Mu.Unlock()
	now := time.Now() // only now, because earlier ends have been recorded
	for _, d := range woken {
		if d.asleep { // otherwise Sleep clears it; until then commits start no pass
			d.woken.Store(false)
			s.wake(d, now)
		}
	}
	wait := s.startPolls(ctx, now)
	return min(wait, s.cfg.Pass(ctx, now))
}
