package forwarder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
)

// Group drains the outboxes of many databases with few connections. An idle database has no forwarder and no
// connection: it is polled with one cheap statement, and gets a forwarder when there is a message. A broken or slow
// database does not delay others. Any number of Groups, in any number of processes, share the work. It is safe for
// concurrent use.
type Group struct {
	pub       message.Publisher
	cfg       GroupConfig
	logger    watermill.LoggerAdapter
	scheduler *scheduler.Scheduler[*database]

	mu     sync.Mutex
	queue  []*database // databases that wait for their forwarder to start
	active map[*database]bool
	polls  int64 // begun
}

// NewGroup makes a Group that publishes to pub, which it never closes; nil if GroupConfig.Configure sets a publisher
// for each database. It does no I/O. It returns an error that names every invalid field. A nil logger logs
// nothing.
func NewGroup(
	databases *fleet.Fleet, pub message.Publisher, cfg GroupConfig, logger watermill.LoggerAdapter,
) (*Group, error) {
	switch {
	case databases == nil:
		return nil, errors.New("forwarder: no databases: pass the result of fleet.New")
	case pub == nil && cfg.Configure == nil:
		return nil, errNoPublisher
	}
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Group{pub: pub, cfg: cfg, logger: core.RedactingLogger(logger), active: map[*database]bool{}}
	g.scheduler = scheduler.New(scheduler.Config[*database]{
		Fleet: databases, Logger: g.logger, Mu: &g.mu,
		Polls: pollsAtOnce, PollInterval: cfg.IdlePollInterval, MaxPollInterval: cfg.IdlePollInterval,
		Concerns: func(n core.Notification) bool { return n.Outbox },
		Join:     g.join, Poll: g.poll, Woken: g.woken, Removed: g.removed, Pass: g.pass,
	})
	return g, nil
}

// Run publishes until ctx ends or Close is called, and returns nil when everything that it started has ended. It waits
// for the first discovery of the fleet, which must run too and end later: outbox.Run(ctx, router, group, databases).
// Errors of a database are logged and retried. It returns outbox.ErrRunning or outbox.ErrClosed.
func (g *Group) Run(ctx context.Context) error { return g.scheduler.Run(ctx) }

// Running returns a channel that is closed when the databases of the first discovery are being polled.
func (g *Group) Running() <-chan struct{} { return g.scheduler.Running() }

// Close ends Run and waits for it to return. It may be called several times, concurrently, but not by a publisher or an
// observer.
func (g *Group) Close() error {
	g.scheduler.Close()
	return nil
}

// Drain publishes the ready messages of all known databases and returns when none are left. If Run is not running,
// Drain runs the group meanwhile, and it cannot be run again. Its error names the databases that could not be drained;
// the others are drained anyway. It also returns the error of ctx, or outbox.ErrClosed.
func (g *Group) Drain(ctx context.Context) error { return g.scheduler.Drain(ctx, g.drainOne) }

// drainOne waits for the next poll of a database, and for its forwarder if it is awake or the poll finds messages.
func (g *Group) drainOne(ctx context.Context, d *database) error {
	g.mu.Lock()
	if d.Removed() {
		defer g.mu.Unlock()
		return g.scheduler.Gone()
	}
	w := wanted{g.polls, make(chan error, 1)}
	d.drains = append(d.drains, w)
	g.scheduler.Poll(d.Database)
	g.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-w.done:
		return err
	}
}

// GroupConfig configures a Group. The zero value is ready for use.
type GroupConfig struct {
	// Forwarder is the configuration of each forwarder. DisableListen is always set, and ReadAheadBytes is 128 MiB
	// divided by MaxActive by default. In a sleeping database old rows are deleted once an hour.
	Forwarder Config
	// Configure changes a copy of Forwarder, or the publisher, for one database; default none. It is called whenever a
	// forwarder starts, concurrently, and must return when its context ends. After an error the database is left alone
	// for a while.
	Configure func(ctx context.Context, key string, cfg *Config, pub *message.Publisher) error
	// IdlePollInterval is how often a sleeping database is polled; default 1 s.
	IdlePollInterval time.Duration
	// IdleAfter is the idle time after which a forwarder is stopped; default 1 min.
	IdleAfter time.Duration
	// MaxActive is the maximum number of running forwarders; default 32. If more databases have messages, they take turns:
	// idle ones are stopped first, then those that have run for 10 s.
	MaxActive int
}

const (
	pollAllInterval = time.Minute      // between polls of everything
	cleanUpFactor   = 60               // times CleanInterval, between clean-ups of a sleeping database
	turn            = 10 * time.Second // of a forwarder while others wait,
	rest            = checkInterval    // or until it has been idle for this long
	stuckForwarders = 4                // times MaxActive
	failingFor      = 10 * time.Second // before a forwarder that cannot read is stopped
	checkInterval   = 100 * time.Millisecond

	pollsAtOnce = 8
	manyPolls   = 1000 // sequences in a statement

	groupRoom = 128 << 20 // bytes in memory, of all forwarders together
)

func (c *GroupConfig) setDefaults() {
	fill(&c.IdlePollInterval, time.Second)
	fill(&c.IdleAfter, time.Minute)
	fill(&c.MaxActive, 32)
	c.Forwarder.DisableListen = true
	c.Forwarder.Topics, c.Forwarder.Routes = slices.Clone(c.Forwarder.Topics), maps.Clone(c.Forwarder.Routes)
	fill(&c.Forwarder.ReadAheadBytes, min(readAheadBytes, max(1<<20, groupRoom/max(c.MaxActive, 1))))
	scope := c.Forwarder.Scope
	c.Forwarder.setDefaults()
	c.Forwarder.Scope = scope // Configure may set other topics, which need another scope
}

// validate returns an error that names the invalid fields.
func (c *GroupConfig) validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"IdlePollInterval", c.IdlePollInterval}, {"IdleAfter", c.IdleAfter}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("GroupConfig.%s is %s: use a positive duration", d.field, d.value))
		}
	}
	if c.MaxActive < 1 {
		errs = append(errs, fmt.Errorf("GroupConfig.MaxActive is %d: use at least 1", c.MaxActive))
	}
	return errors.Join(append(errs, c.Forwarder.validate("GroupConfig.Forwarder"))...)
}

// How a Group shares its slots for forwarders: databases wait in a queue, and take turns if there are more than slots.

// woken queues a database whose forwarder must start. mu must be held.
func (g *Group) woken(_ context.Context, d *database) {
	g.queue = append(g.queue, d)
	g.scheduler.Signal()
}

// pass starts the forwarders for which there are slots, and stops others if there are not enough. It returns the time
// until it must be called again. mu must be held.
func (g *Group) pass(ctx context.Context, now time.Time) time.Duration {
	g.queue = slices.DeleteFunc(g.queue, func(d *database) bool { return d.Removed() })
	n := max(0, min(len(g.queue), g.free(now)))
	for _, d := range g.queue[:n] {
		g.start(ctx, d, now)
	}
	if g.queue = slices.Delete(g.queue, 0, n); len(g.queue) == 0 {
		return time.Hour
	}
	g.makeRoom(now)
	return checkInterval
}

// free returns how many forwarders may be started. Those that wait for their databases use no slot. mu must be held.
func (g *Group) free(now time.Time) int {
	if len(g.queue) == 0 {
		return 0
	}
	free := g.cfg.MaxActive
	for d := range g.active {
		if !d.stuck(now) {
			free--
		}
	}
	return min(free, stuckForwarders*g.cfg.MaxActive-len(g.active))
}

// start must be called with mu held.
func (g *Group) start(ctx context.Context, d *database, now time.Time) {
	d.started, d.changed, d.cleaning = now, now, time.Time{}
	d.stop, d.stopped = make(chan struct{}), false
	g.active[d] = true
	g.scheduler.Go(d.Database, func() { g.run(ctx, d) })
}

// makeRoom stops one forwarder for each waiting database: first the idle ones, then those that have had their turn. A
// forwarder that cleans up is not idle, and gets a whole turn for it. mu must be held.
func (g *Group) makeRoom(now time.Time) {
	type candidate struct {
		d     *database
		quiet time.Duration
	}
	var all []candidate
	wanted := len(g.queue)
	for d := range g.active {
		switch {
		case d.stopped:
			if !d.stuck(now) { // otherwise its slot is already free
				wanted--
			}
		case d.engine != nil && len(d.drains) == 0:
			quiet, since := d.engine.health().Quiet, d.started
			if !d.cleaning.IsZero() {
				quiet, since = 0, d.cleaning
			}
			if quiet >= rest || now.Sub(since) >= turn {
				all = append(all, candidate{d, quiet})
			}
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if a.quiet != b.quiet {
			return int(b.quiet - a.quiet)
		}
		return a.d.started.Compare(b.d.started)
	})
	for _, c := range all[:max(0, min(wanted, len(all)))] {
		c.d.end()
	}
}
