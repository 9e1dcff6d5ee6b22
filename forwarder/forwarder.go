package forwarder

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/life"
)

// Forwarder publishes what is committed to the outbox. Any number of them, in any number of processes, share
// the work. It is safe for concurrent use.
type Forwarder struct {
	engine *engine
	life   *life.Life
}

// New makes a Forwarder that publishes to pub, which it never closes. It does no I/O. It returns outbox.ErrNoDB,
// ErrNoPublisher, ErrOwnPublisher or an error that names every field of the Config at fault. It warns in the log of a
// publisher of watermill-amqp, which reports success for what RabbitMQ may not have. A nil logger logs nothing.
func New(db *outbox.DB, pub message.Publisher, cfg Config, logger watermill.LoggerAdapter) (*Forwarder, error) {
	return newForwarder(db, pub, cfg, false, logger)
}

// newForwarder makes one of a Group's, if it is pooled: it comes and goes, and has no connection of its own.
func newForwarder(
	db *outbox.DB, pub message.Publisher, cfg Config, pooled bool, logger watermill.LoggerAdapter,
) (*Forwarder, error) {
	if pub == nil {
		return nil, ErrNoPublisher
	}
	if err := refuseOwn(db, cfg, pub); err != nil {
		return nil, err
	}
	to := newPublishers(pub, cfg)
	send := func(_ *callContext, d core.Delivery, msg *message.Message) error { return to.publish(d.Topic, msg) }
	e, err := newEngine(context.Background(), db, cfg, send, to, logger)
	if err != nil {
		return nil, err
	}
	if e.pooled = pooled; !pooled { // else its Group has warned
		warnOfUnconfirmed((*core.DB)(db).Logger(logger), to.all)
	}
	return &Forwarder{engine: e, life: life.New()}, nil
}

// Run publishes until ctx is over or Close is called, and then returns nil once everything that it started has ended:
// no new message is sent, those under way are waited for up to Config.CloseTimeout and settled, and the lanes are given
// to the other forwarders. It returns an error before it publishes anything, which is logged as well:
// schema.ErrSchemaChanged if the schema is not as it must be, outbox.ErrRunning, outbox.ErrClosed, or that of the
// database if it does not answer. Errors after the start are logged and retried.
//
// While forwarders live that read some of the same topics under another scope, or other topics under the same one, as
// those of the release before do when Config.Topics has changed, it publishes nothing and waits until they have left.
// It says so in the log at once and each minute, and in waiting_since of its row in outbox_forwarders. Those that start
// meanwhile wait behind it, also if their topics are the old ones.
//
// Run it as a goroutine beside the Router, and give it a context of its own that ends after the Router has
// closed, so that what the last handlers committed leaves at once.
func (f *Forwarder) Run(ctx context.Context) error {
	ctx, end, err := f.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	defer f.engine.reports.start(f.engine.cfg.CloseTimeout)()
	if err := f.engine.prepare(ctx); err != nil {
		if ctx.Err() == nil && !f.engine.pooled { // else its Group says so
			// Cause: the database, its tables, settings or grants.
			// Cure: do what the error says; outboxctl doctor lists all problems.
			f.engine.logger.Error("forwarder could not start", err, nil)
		}
		return err
	}
	return f.engine.run(ctx)
}

// Running returns a channel that is closed when the forwarder is registered and has taken the lanes that are free. If
// others own all of them, it gets its share as soon as they have given it back. A readiness probe must not wait for it:
// if the old release is ended only when the new one is ready, and the topics have changed, each would wait for the
// other.
func (f *Forwarder) Running() <-chan struct{} { return f.engine.running }

// Close ends Run and waits for it to return. It may be called several times, by several goroutines, but not by the
// publisher or an observer, which Run waits for.
func (f *Forwarder) Close() error {
	f.life.Close()
	return nil
}

// Drain publishes the ready messages in the forwarder's lanes and returns when nothing is left: for tests, jobs, and
// before shutting down. It runs the forwarder for that time unless Run does already; then the forwarder is spent. Other
// forwarders that live publish what is in their lanes. One that runs for Drain alone takes the lanes of those that were
// killed: it waits until each of the others has renewed its lease, or the lease is over, which takes up to LeaseTTL.
//
// Messages that are delayed or wait for another attempt, and those whose keys these hold, are not ready. It waits up to
// CloseTimeout for publishes that timed out: what follows their messages is ready if they succeed after all. While a
// topic is unavailable it waits; for one that an operator has paused it does not, but returns an error that names it
// when all else is published. It also returns the error of ctx, of starting as Run does, or outbox.ErrClosed.
func (f *Forwarder) Drain(ctx context.Context) error {
	if f.life.Begun() {
		return f.drainRunning(ctx)
	}
	failed := make(chan error, 1)
	drainCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		failed <- f.Run(drainCtx)
		cancel()
	}()
	err := f.engine.drain(drainCtx, true)
	cancel()
	switch runErr := <-failed; {
	case errors.Is(runErr, outbox.ErrRunning): // another call was faster
		return f.drainRunning(ctx)
	case runErr != nil:
		return runErr
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// drainRunning is Drain while Run is under way. It does not wait for a Run that has ended, or could not start.
func (f *Forwarder) drainRunning(ctx context.Context) error {
	drainCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.life.Done():
			cancel()
		case <-drainCtx.Done():
		}
	}()
	err := f.engine.drain(drainCtx, false)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return outbox.ErrClosed
	}
	return err
}
