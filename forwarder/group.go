package forwarder

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
)

// Group drains the outboxes of many databases with few connections. An idle database has no forwarder and no
// connection: it is polled with one cheap statement, and gets a forwarder when there is a message. A broken or slow
// database delays no other. Any number of Groups, in any number of processes, share the work. It is safe for concurrent
// use.
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

// Drain publishes the ready messages of all known databases and returns when none are left. If Run is not running, it
// runs the group for that time, after which it cannot be run again. Its error names the databases that could not be
// drained; the others are drained all the same. It also returns the error of ctx, or outbox.ErrClosed.
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
