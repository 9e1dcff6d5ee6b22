package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/life"
)

// ErrUnknownDatabase is returned for a key that the last discovery did not return, or whose target is unusable.
//
// Cure: add the database to the discovery, and wait for Config.RefreshInterval.
var ErrUnknownDatabase = errors.New("fleet: unknown database")

// closeTimeout is how long Run waits for handles that are still in use.
const closeTimeout = 30 * time.Second

// Fleet keeps handles on many databases. It is safe for concurrent use.
type Fleet struct {
	discovery Discovery
	cfg       Config
	logger    watermill.LoggerAdapter // a nil logger was replaced
	given     watermill.LoggerAdapter // logger for handles
	budget    *budget
	running   chan struct{}
	found     sync.Once
	life      *life.Life

	background sync.WaitGroup  // handles being opened, and the discovery in flight
	polled     chan discovered // result of the discovery in flight; used only by refresh

	mu      sync.Mutex
	members map[string]*member
	open    map[Target]*opened
	opening map[Target]bool  // calls of Config.Open and the discovery, including abandoned ones
	pools   map[string]*pool // by DSN
	faults  map[string]error // by key: why the target is unusable
	keys    []string         // sorted keys of members; nil before the first discovery. Replaced, never modified
	ended   bool
}

// New makes a Fleet. It does no I/O: Run discovers the targets. It returns an error for a nil Discovery, or one that
// names an invalid field. The handles use the same logger; nil logs nothing.
func New(d Discovery, cfg Config, logger watermill.LoggerAdapter) (*Fleet, error) {
	if d == nil {
		return nil, errors.New("fleet: no Discovery: use Static(targets...) for a fixed list of databases")
	}
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	f := &Fleet{
		discovery: d, cfg: cfg, logger: core.RedactingLogger(logger), given: logger,
		running: make(chan struct{}), life: life.New(),
		members: map[string]*member{}, open: map[Target]*opened{}, opening: map[Target]bool{}, pools: map[string]*pool{},
	}
	f.budget = newBudget(cfg.MaxConns, f.logger)
	return f, nil
}

// Run discovers targets immediately and at each RefreshInterval, until ctx ends or Close is called. Then Get and
// Acquire fail, and Run returns nil once the handles are closed, after at most 30 s. Pass the Fleet to outbox.Run last,
// after all users of its handles. It returns outbox.ErrRunning or outbox.ErrClosed.
func (f *Fleet) Run(ctx context.Context) error {
	ctx, end, err := f.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	f.refresh(ctx)
	f.end()
	return nil
}

// end releases everything.
func (f *Fleet) end() {
	f.mu.Lock()
	f.ended = true
	members := f.members
	f.members, f.keys = nil, []string{}
	f.mu.Unlock()
	for _, m := range members {
		close(m.gone)
		f.release(m.opened)
	}
	ended := make(chan struct{})
	go func() {
		f.background.Wait()
		close(ended)
	}()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		f.mu.Lock()
		var keys []string
		for t := range f.open {
			keys = append(keys, t.Key)
		}
		for t := range f.opening {
			keys = append(keys, t.Key)
		}
		f.mu.Unlock()
		// Cause: Fleet.Run ended first.
		// Cure: call Release before.
		f.logger.Error("fleet ended while handles are in use: their connections stay open until Release",
			context.DeadlineExceeded,
			watermill.LogFields{"in_use": some(keys)})
	}
}

// Running returns a channel that is closed when the first discovery has succeeded.
func (f *Fleet) Running() <-chan struct{} { return f.running }

// Close ends Run and waits for it to return. It may be called several times, concurrently.
func (f *Fleet) Close() error {
	f.life.Close()
	return nil
}

// Keys returns the keys of all targets, sorted.
func (f *Fleet) Keys() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys)
}
