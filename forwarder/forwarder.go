package forwarder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/life"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Forwarder publishes the committed messages of the outbox. Any number of forwarders, in any number of processes, share
// the work. It is safe for concurrent use.
type Forwarder struct {
	engine *engine
	life   *life.Life
}

// New makes a Forwarder that publishes to pub, which it never closes. It does no I/O. It returns outbox.ErrNoDB, or an
// error that names every invalid field. A nil logger logs nothing.
func New(db *outbox.DB, pub message.Publisher, cfg Config, logger watermill.LoggerAdapter) (*Forwarder, error) {
	return newForwarder(db, pub, cfg, false, logger)
}

// newForwarder makes a forwarder. A pooled one belongs to a Group: it is temporary and has no connection of its own.
func newForwarder(
	db *outbox.DB, pub message.Publisher, cfg Config, pooled bool, logger watermill.LoggerAdapter,
) (*Forwarder, error) {
	if pub == nil {
		return nil, errNoPublisher
	}
	if err := refuseLoop(db, cfg, pub); err != nil {
		return nil, err
	}
	to := newPublishers(pub, cfg)
	send := func(_ *callContext, d core.Delivery, msg *message.Message) error { return to.publish(d.Topic, msg) }
	e, err := newEngine(context.Background(), db, cfg, send, to, logger)
	if err != nil {
		return nil, err
	}
	e.pooled = pooled
	return &Forwarder{engine: e, life: life.New()}, nil
}

// Run publishes until ctx ends or Close is called, and returns nil when everything that it started has ended. It then
// sends no new message, waits for publishes in flight up to Config.CloseTimeout, and hands its lanes over. Run it as a
// goroutine with a context that ends after the Router has closed, or by outbox.Run.
//
// It returns an error before it publishes anything: schema.ErrSchemaChanged if the schema does not fit,
// outbox.ErrRunning, outbox.ErrClosed, or the database's error. Errors after the start are logged and retried.
//
// While other forwarders read some of the same topics under another scope, or other topics under the same scope, as in
// a deployment that changes Config.Topics, Run publishes nothing and waits until they have stopped. It logs that
// immediately and once a minute, and sets waiting_since in its row of outbox_forwarders. Forwarders that start
// meanwhile wait behind it.
func (f *Forwarder) Run(ctx context.Context) error {
	ctx, end, err := f.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	defer f.engine.reports.start(f.engine.cfg.CloseTimeout)()
	if err := f.engine.prepare(ctx); err != nil {
		if ctx.Err() == nil && !f.engine.pooled { // otherwise its Group logs it
			// Cause: the database, its tables, settings or grants.
			// Cure: run outboxctl doctor for all problems.
			f.engine.logger.Error("forwarder could not start", err, nil)
		}
		return err
	}
	return f.engine.run(ctx)
}

// Running returns a channel that is closed when the forwarder is registered and has taken the free lanes. A readiness
// probe must not wait for it: if the topics have changed, the old release waits for the new one and the new one for the
// old.
func (f *Forwarder) Running() <-chan struct{} { return f.engine.running }

// Close ends Run and waits for it to return. It may be called several times, concurrently, but not by the publisher or
// an observer.
func (f *Forwarder) Close() error {
	f.life.Close()
	return nil
}

// Drain publishes the ready messages in the forwarder's lanes and returns when none are left. It is for tests and jobs,
// and for use before a shutdown. If Run is not running, Drain runs the forwarder meanwhile, and it cannot be run again.
// Other live forwarders publish the messages in their lanes; Drain takes over the lanes of killed forwarders, for which
// it waits up to LeaseTTL.
//
// Messages that are delayed or wait for another attempt, and messages behind these under the same key, are not ready.
// It waits up to CloseTimeout for publishes that timed out: messages behind them are ready if they succeed. It waits
// while a topic is unavailable. If an operator has paused a topic, it publishes everything else and returns an error
// that names the topic. It also returns the error of ctx, the errors of Run's start, or outbox.ErrClosed.
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

// drainRunning is Drain while Run is running. It does not wait for a Run that has ended or could not start.
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

// drain waits until a read that began after the call has found no work left; others is as in coordinator.DrainBegins.
func (e *engine) drain(ctx context.Context, others bool) error {
	var id int64
	done := make(chan error, 1)
	e.step(func(_ time.Time, c *coordinator.Coordinator) {
		id = c.DrainBegins(others)
		e.drains[id] = done
	})
	defer e.step(func(_ time.Time, c *coordinator.Coordinator) {
		c.DrainEnds(id)
		delete(e.drains, id)
	})
	e.wake()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-done:
		return err
	}
}

// errDrained returns the error of a drain: nil, or one that names the paused topics for which messages wait.
func errDrained(d coordinator.Drained) error {
	switch {
	case d.Closed:
		return outbox.ErrClosed
	case len(d.Paused) == 0:
		return nil
	}
	topics := slices.Sorted(slices.Values(d.Paused))
	return fmt.Errorf("forwarder: not drained: topics paused by an operator: %q: resume them with admin.Resume", topics)
}

// State describes the forwarder's memory in one line for a log or a debugger: which lanes it reads, its lease, messages
// in memory and in flight, and topics that it does not publish to. Zero values are left out. For the tables use
// admin.Stats and admin.Doctor.
//
// State takes a few microseconds, without the database, and may be called at any time, even before and after Run.
func (f *Forwarder) State() string {
	var s coordinator.State
	f.engine.step(func(now time.Time, c *coordinator.Coordinator) { s = c.State(now) })
	return describe(s)
}

// describe names the number of lanes that are read, and the other lanes by number.
func describe(s coordinator.State) string {
	reading, others := 0, []string(nil)
	for _, l := range s.Lanes {
		switch l.State {
		case coordinator.Reading:
			reading++
		case coordinator.Taken: // its blocked keys are being loaded
			others = append(others, fmt.Sprintf("%d taken", l.Number))
		case coordinator.Releasing: // another forwarder gets it once nothing of it is in flight
			others = append(others, fmt.Sprintf("%d releasing", l.Number))
		}
	}
	lanes := fmt.Sprintf("%d of %d lanes read", reading, max(s.Share, 0))
	if len(others) > 0 {
		lanes += fmt.Sprintf(" (%s)", strings.Join(others, ", "))
	}
	parts := []string{lanes, "no lease"}
	if s.Lease > 0 {
		parts[1] = "lease for " + round(s.Lease).String()
	}
	count := func(what string, n int) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(what, n))
		}
	}
	since := func(what string, d time.Duration) {
		if d > 0 {
			parts = append(parts, fmt.Sprintf(what, round(d)))
		}
	}
	count("messages in memory: %d", s.Rows)
	count("%d bytes", int(s.Bytes))
	count("%d publishing", s.Young+s.Slow)
	count("%d hung", s.Hung)
	count("%d unsettled", s.Unsettled)
	count("%d waiting keys", s.Waiting)
	count("%d blocked keys", s.BlockedKeys)
	if len(s.NotPublished) > 0 {
		parts = append(parts, fmt.Sprintf("topics not published to %q", slices.Sorted(slices.Values(s.NotPublished))))
	}
	count("lag %d ids", int(s.Lag))
	count("%d waiting calls of Drain", s.Drains)
	since("quiet for %s", s.Quiet)
	since("reads fail for %s", s.Failing)
	since("reading for %s", s.Reading)
	if s.Stopping {
		parts = append(parts, "stopping")
	}
	return strings.Join(parts, "; ")
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

var (
	// errNoPublisher is returned by New for a nil publisher.
	errNoPublisher = errors.New("forwarder: no publisher: pass the broker's publisher")

	// errOwnPublisher is returned by New for a publisher into the outbox that the forwarder reads, also behind decorators.
	errOwnPublisher = errors.New("forwarder: publisher writes to the outbox that the forwarder reads: " +
		"messages would loop forever: pass the broker's publisher")

	// ErrPublishTimeout is the error of a publish that took longer than Config.PublishTimeout. It goes to
	// Config.Classify and, if it is counted, into the message's last_error.
	//
	// Cure: check the broker; if it is slow, raise Config.PublishTimeout.
	ErrPublishTimeout = errors.New("forwarder: publish timed out")

	// errPublishPanic is the error of a publisher that panicked. It is classified and recorded like ErrPublishTimeout.
	//
	// Cause: a bug of the publisher.
	// Cure: fix the publisher: the log has the stack.
	errPublishPanic = errors.New("forwarder: publisher panicked")

	// errBadMetadata is for rows written by hand: the write side stores only metadata that can be read back.
	// Cause: the row was written by hand.
	// Cure: correct it; then requeue.
	errBadMetadata = errors.New("forwarder: metadata is not a JSON object of strings")

	// errStopped ends the contexts of calls that are still in flight after Config.CloseTimeout.
	// Cause: publishes took longer than CloseTimeout.
	// Cure: raise CloseTimeout above PublishTimeout.
	errStopped = errors.New("forwarder: stopped")

	// errGoexit is the error of user code that called runtime.Goexit.
	// Cause: the publisher ended its goroutine.
	// Cure: return an error instead.
	errGoexit = errors.New("the publisher called runtime.Goexit")

	// errNoIncarnation means that no forwarder has read the outbox since the server crashed, or ever.
	// Cause: no forwarder has read the outbox since a crash.
	// Cure: none is needed.
	errNoIncarnation = errors.New("identity of the server not recorded yet")

	// errNewIncarnation means that everything read before is void.
	// Cause: the server was restarted, restored or replaced.
	// Cure: none is needed.
	errNewIncarnation = errors.New("server or id sequence restarted, restored or replaced: reading starts over")

	// Cause: they are slower than publishing.
	// Cure: make them faster.
	errTooSlow = errors.New("forwarder: too many reports are queued")

	// errStandby is logged and reported to observers if a running forwarder is connected to a standby. Snapshots there do
	// not list the transactions in progress, so it cannot be read in order: nothing is published until they reach a
	// primary again. On a standby Run does not start; schema.Check says so.
	errStandby = errors.New("forwarder: connected to a standby: connect to the primary")
)

// timedOut reports whether a statement was given up because it took too long.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || text.SQLState(err) == "57014"
}
