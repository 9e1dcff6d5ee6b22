package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/life"
)

// Group drains the outboxes of many databases with few connections. An idle database has no forwarder and no
// connection: it is polled with one cheap statement, and gets a forwarder when there is a message. A broken or slow
// database delays no other. Any number of Groups, in any number of processes, share the work. It is safe for concurrent
// use.
type Group struct {
	fleet   *fleet.Fleet
	pub     message.Publisher
	cfg     GroupConfig
	logger  watermill.LoggerAdapter
	running chan struct{}
	life    *life.Life
	now     chan struct{} // capacity 1: the scheduler must check for work

	work sync.WaitGroup // polls and forwarders

	mu      sync.Mutex
	ended   bool
	all     map[string]*database
	servers map[any]*server // by pool
	soonest servers         // those to be polled that are not being polled now
	queue   []*database     // databases that wait for their forwarder to start
	active  map[*database]bool
	polls   int // in flight and not slow
	slow    int // in flight and slow
	begun   int64

	wokenMu sync.Mutex // taken under locks of handles, so nothing is called under it
	woken   []*database
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
	logger = core.RedactingLogger(logger)
	return &Group{
		fleet: databases, pub: pub, cfg: cfg, logger: logger,
		running: make(chan struct{}), life: life.New(), now: make(chan struct{}, 1),
		all: map[string]*database{}, servers: map[any]*server{}, active: map[*database]bool{},
	}, nil
}

// Run publishes until ctx ends or Close is called, and returns nil when everything that it started has ended. It waits
// for the first discovery of the fleet, which must run too and end later: outbox.Run(ctx, router, group, databases).
// Errors of a database are logged and retried. It returns outbox.ErrRunning or outbox.ErrClosed.
func (g *Group) Run(ctx context.Context) error {
	ctx, end, err := g.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	select {
	case <-ctx.Done():
		g.end()
		return nil
	case <-g.fleet.Running():
	}
	g.sync()
	close(g.running)
	g.schedule(ctx)
	g.work.Wait()
	g.end()
	return nil
}

// end answers waiting calls, and releases all handles.
func (g *Group) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	for _, d := range g.all {
		d.answer(outbox.ErrClosed)
		g.remove(d)
	}
}

// Running returns a channel that is closed when the databases of the first discovery are being polled.
func (g *Group) Running() <-chan struct{} { return g.running }

// Close ends Run and waits for it to return. It may be called several times, concurrently, but not by a publisher or an
// observer.
func (g *Group) Close() error {
	g.life.Close()
	return nil
}

// Drain publishes the ready messages of all known databases and returns when none are left. If Run is not running, it
// runs the group for that time, after which it cannot be run again. Its error names the databases that could not be
// drained; the others are drained all the same. It also returns the error of ctx, or outbox.ErrClosed.
func (g *Group) Drain(ctx context.Context) error {
	return g.life.While(ctx, g.Run, g.running, func() error { return g.drainAll(ctx) })
}

func (g *Group) drainAll(ctx context.Context) error {
	g.sync()
	waits := map[string]chan error{}
	g.mu.Lock()
	for key, d := range g.all {
		waits[key] = d.drain(g.begun)
		d.pollAt, d.allAt = time.Time{}, time.Time{}
		g.pollAt(d.server, time.Time{})
	}
	g.mu.Unlock()
	signal(g.now)
	var errs []error
	for key, answered := range waits {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-answered:
			if err != nil {
				errs = append(errs, fmt.Errorf("database %q: %w", key, err))
			}
		}
	}
	return errors.Join(errs...)
}
