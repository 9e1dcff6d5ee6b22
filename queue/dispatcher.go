package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/life"
)

// Dispatcher claims stored messages, calls the handler of their topic and settles them. Any number of dispatchers, in
// any number of processes, share the work. It is safe for concurrent use.
type Dispatcher struct {
	store  *Store
	cfg    DispatcherConfig
	logger watermill.LoggerAdapter
	loop   *loop
	life   *life.Life

	unknownTopicsMu sync.Mutex
	unknownTopics   unknownTopics
}

// NewDispatcher makes a Dispatcher. It does no I/O. It returns outbox.ErrNoDB for a nil store, or an error that names
// every invalid field. Failed handlers and dead messages are logged as errors, attempts at info level. If logger is
// nil, the logger of the handle is used.
func NewDispatcher(store *Store, cfg DispatcherConfig, logger watermill.LoggerAdapter) (*Dispatcher, error) {
	cfg.setDefaults()
	if store == nil {
		return nil, errors.Join(outbox.ErrNoDB, cfg.validate())
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	d := &Dispatcher{store: store, cfg: cfg, logger: store.db.Logger(logger), unknownTopics: unknownTopics{},
		life: life.New()}
	limits := map[string]int{}
	for topic, h := range cfg.Handlers {
		if h.Concurrency < cfg.Concurrency {
			limits[topic] = h.Concurrency
		}
	}
	d.loop = newLoop(store, loopConfig{
		limits: limits, slots: cfg.Concurrency, batch: cfg.BatchSize, room: cfg.MaxBytes,
		lease: cfg.LeaseTTL, poll: cfg.PollInterval, closeTimeout: cfg.CloseTimeout,
	}, d.logger, d.handle)
	return d, nil
}

// Run handles messages until ctx ends or Close is called, and returns nil when everything that it started has ended.
// Then it claims nothing more, releases messages whose handlers have not begun, without counting an attempt, and waits
// for handlers. After DispatcherConfig.CloseTimeout their contexts end, and their messages are given back too.
//
// It returns an error before it handles anything if the database does not respond or has no table; outbox.ErrRunning
// and outbox.ErrClosed. Errors after the start are logged and retried.
func (d *Dispatcher) Run(ctx context.Context) error {
	ctx, end, err := d.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	defer d.loop.begin(ctx)()
	m := d.maintainer()
	if err := m.once(ctx); err != nil {
		d.loop.refuse()
		if ctx.Err() != nil {
			return nil
		}
		// Cause: the database, or the queue's table is missing.
		// Cure: run outboxctl doctor for all problems.
		d.logger.Error("dispatcher could not start", err, nil)
		return err
	}
	var helpers sync.WaitGroup
	helpers.Go(func() { m.run(ctx) })
	if !d.cfg.DisableListen {
		helpers.Go(func() { listen(ctx, d.store, d.logger, d.loop.notified) })
	}
	d.loop.run(ctx)
	helpers.Wait()
	return nil
}

// Running returns a channel that is closed when the dispatcher has started to poll.
func (d *Dispatcher) Running() <-chan struct{} { return d.loop.running }

// Close ends Run and waits for it to return. It may be called several times, concurrently, but not by a handler.
func (d *Dispatcher) Close() error {
	d.life.Close()
	return nil
}

// Drain handles the ready messages and returns when none are left. It is for tests and jobs, and for use before a
// shutdown. If Run is not running, Drain runs the dispatcher meanwhile, and it cannot be run again. Messages that are
// delayed or wait for a retry are not ready, nor are messages that a constraint or trigger on the table refuses to
// claim. Drain waits for messages whose ack is refused. It returns the error of ctx, the errors of Run's start, or
// outbox.ErrClosed.
func (d *Dispatcher) Drain(ctx context.Context) error {
	if d.life.Begun() {
		return d.loop.drain(ctx)
	}
	own, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(own) }()
	drained := make(chan error, 1)
	go func() { drained <- d.loop.drain(own) }()
	select {
	case err := <-ended:
		if errors.Is(err, outbox.ErrRunning) { // a concurrent call started it
			return <-drained
		}
		end()
		<-drained
		return errors.Join(err, ctx.Err())
	case err := <-drained:
		end()
		return errors.Join(err, <-ended)
	}
}

func (d *Dispatcher) maintainer() *maintainer {
	m := newMaintainer(d.store, d.logger, d.cfg.LeaseTTL, d.cfg.CleanInterval, d.cfg.Service, d.cfg.topics)
	if d.cfg.OnDead != nil {
		m.takeExpired = d.takeExpired
	}
	return m
}

// handle processes a message, in its own slot and goroutine.
func (d *Dispatcher) handle(c *claimed) {
	h, known := d.cfg.handler(c.Topic)
	switch {
	case !known:
		d.snooze(c)
	case c.expired:
		d.markDeadUnhandled(c, errExpired, false)
	case c.exhausted():
		d.markDeadUnhandled(c, exhaustedBy(&c.Message), false)
	default:
		d.process(c, h)
	}
}

// Cause: no handler of this process has it.
// Cure: add one, or set DefaultHandler.
var errNoHandler = errors.New("no handler for the topic")

// snooze keeps a message of a topic without a handler, for another service or release that has one. While such a
// process may be about to claim it, it is released immediately and the topic is skipped.
func (d *Dispatcher) snooze(c *claimed) {
	now := time.Now()
	ready := now.Sub(later(c.FirstSeenAt, c.DueAt))
	d.unknownTopicsMu.Lock()
	warn, wait := d.unknownTopics.seen(c.Topic, now, now.Sub(c.FirstSeenAt))
	d.unknownTopicsMu.Unlock()
	if ready < unknownTopicGrace {
		d.loop.step(func() {
			if d.loop.schedule.skip(c.Topic, now.Add(unknownTopicGrace)) {
				wait = 0
			}
		})
	}
	fields := c.fields().Add(watermill.LogFields{"wait": wait.String()})
	if warn {
		// Cause: no handler of this process has it.
		d.logger.Info("warning: no handler for the topic: its messages stay, no attempt is counted: "+
			"add it to DispatcherConfig.Handlers, or set DefaultHandler", fields)
	} else {
		d.logger.Debug("no handler for the topic: the message stays, no attempt is counted", fields)
	}
	c.release(wait, errNoHandler.Error())
	if wait == 0 {
		d.store.db.WakeLater(d.loop.base, core.QueueNotification(c.Topic))
	}
}
