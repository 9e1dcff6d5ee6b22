package forwarder

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// maxReports is how many reports may wait; further ones are counted and dropped.
const maxReports = 1024

// reporter calls the logger and the observers in its own goroutine. They are user code: they may be slow, hang or
// panic, and that must not stop anything else.
type reporter struct {
	queue   chan func()
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}
	logger  watermill.LoggerAdapter
	labels  context.Context // of its goroutine
}

func newReporter(logger watermill.LoggerAdapter) *reporter {
	return &reporter{
		queue: make(chan func(), maxReports), stop: make(chan struct{}), done: make(chan struct{}), logger: logger,
		labels: context.Background(),
	}
}

// post queues a report. It never blocks.
func (r *reporter) post(report func()) {
	select {
	case r.queue <- report:
	default:
		r.dropped.Add(1)
	}
}

// run reports until it is stopped and the queue is empty. If a report ends this goroutine, a new one takes over.
func (r *reporter) run() {
	pprof.SetGoroutineLabels(r.labels)
	ended := true
	defer func() {
		if ended {
			go r.run()
		} else {
			close(r.done)
		}
	}()
	for {
		select {
		case report := <-r.queue:
			r.call(report)
			continue
		default:
		}
		select {
		case report := <-r.queue:
			r.call(report)
		case <-r.stop:
			if len(r.queue) == 0 {
				ended = false
				return
			}
		}
	}
}

func (r *reporter) call(report func()) {
	guard(report, func(err error) {
		// It may be the logger that panics.
		stack := watermill.LogFields{"stack": string(debug.Stack())}
		// Cause: a bug of the logger or observer; see the field stack.
		// Cure: publishing goes on.
		guard(func() { r.logger.Error("logger or observer panicked", err, stack) }, func(error) {})
	})
	if n := r.dropped.Swap(0); n > 0 {
		guard(func() {
			// Cause: they are slower than publishing.
			// Cure: until they are faster, counts are too low.
			r.logger.Error("logger or observer too slow: reports dropped", errTooSlow, watermill.LogFields{"reports": n})
		}, func(error) {})
	}
}

// start starts reporting. The returned function waits until everything is reported, up to atMost.
func (r *reporter) start(atMost time.Duration) (end func()) {
	go r.run()
	return func() {
		close(r.stop)
		timer := time.NewTimer(atMost)
		defer timer.Stop()
		select {
		case <-r.done:
		case <-timer.C:
		}
	}
}

// guard runs user code. If it panics, failed is called and the panic goes no further; the same happens if it ends its
// goroutine, for which the caller's own deferred functions must be prepared.
func guard(fn func(), failed func(error)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			failed(core.Panicked(p))
		} else {
			failed(errGoexit)
		}
	}()
	fn()
	returned = true
}

// queuedLogger is a logger that never blocks.
type queuedLogger struct {
	to      watermill.LoggerAdapter
	reports *reporter
}

func (l queuedLogger) Error(msg string, err error, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Error(msg, err, fields) })
}

func (l queuedLogger) Info(msg string, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Info(msg, fields) })
}

func (l queuedLogger) Debug(msg string, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Debug(msg, fields) })
}

func (l queuedLogger) Trace(msg string, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Trace(msg, fields) })
}

func (l queuedLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return queuedLogger{l.to.With(fields), l.reports}
}

// reportLog passes reports of the dispatcher to the log and the observers. It belongs to the reporter.
type reportLog struct {
	logger   watermill.LoggerAdapter
	obs      *observers
	since    map[string]time.Time // of paused topics
	pausedBy map[string]time.Time // of topics that an operator has paused
}

func (l *reportLog) report(now time.Time, list []dispatch.Report) {
	for _, r := range list {
		fields := watermill.LogFields{"topic": r.Topic}
		if r.ByOperator {
			l.operator(now, r, fields)
			continue
		}
		switch r.Kind {
		case dispatch.TopicPaused:
			l.paused(now, r, fields.Add(watermill.LogFields{"failures": r.Failures, "wait": r.Wait.String()}))
		case dispatch.TopicExhausted:
			l.exhausted(now, r, fields.Add(watermill.LogFields{"publishes": r.Failures}))
		case dispatch.TopicResumed:
			l.logger.Info("topic available again", fields)
			l.obs.resumed(observe.TopicResumed{Topic: r.Topic, Duration: now.Sub(l.begin(now, r.Topic))})
			delete(l.since, r.Topic)
		case dispatch.RowRejected:
			l.rejected(r, fields.Add(watermill.LogFields{
				"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts, "wait": r.Wait.String(),
			}))
		case dispatch.RowDead:
			// Cause: MaxAttempts and MinDeadAge are reached, or the error is permanent.
			// Cure: see outboxctl errors; then outbox requeue or discard.
			l.logger.Error("message died: fix the cause, then requeue it", r.Err,
				fields.Add(watermill.LogFields{"id": r.ID, "uuid": r.UUID, "attempts": r.Attempts}))
			l.obs.dead(observe.MessageDead{Topic: r.Topic, UUID: r.UUID, ID: r.ID, Attempts: r.Attempts, Err: r.Err})
		case dispatch.OrphanFound:
			l.logger.Info("message became pending again: its row was changed by hand", watermill.LogFields{"id": r.ID})
		case dispatch.TooManyWaiting:
			l.logger.Info("too many ordering keys wait for paused topics: further keys are not blocked on other topics",
				watermill.LogFields{"lane": r.Lane})
		}
	}
}

// operator logs that a topic was paused or resumed by hand.
func (l *reportLog) operator(now time.Time, r dispatch.Report, fields watermill.LogFields) {
	if r.Kind == dispatch.TopicPaused {
		l.logger.Info("topic paused by an operator: its messages stay pending", fields)
		l.pausedBy[r.Topic] = now
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, ByOperator: true})
		return
	}
	l.logger.Info("topic resumed by an operator", fields)
	l.obs.resumed(observe.TopicResumed{Topic: r.Topic, Duration: now.Sub(l.pausedBy[r.Topic]), ByOperator: true})
	delete(l.pausedBy, r.Topic)
}

// begin returns when the topic's pause began.
func (l *reportLog) begin(now time.Time, topic string) time.Time {
	if _, ok := l.since[topic]; !ok {
		l.since[topic] = now
	}
	return l.since[topic]
}

// paused logs the first failure as an error, and its repetitions once a minute.
func (l *reportLog) paused(now time.Time, r dispatch.Report, fields watermill.LogFields) {
	switch {
	case r.Failures != 1 && !r.Repeated:
		l.logger.Debug("topic still unavailable", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	case r.Unclassified:
		// Cause: five messages in a row failed.
		// Cure: check the broker; use package kafka, nats or amqp, or set Config.Classify.
		l.logger.Error("topic unavailable: all its publishes fail, with unclassified errors: paused, no attempt is "+
			"counted", r.Err, fields)
	default:
		// Cause: the broker is not reached, or lacks the topic.
		// Cure: the topic resumes on its own.
		l.logger.Error("topic unavailable: paused, no attempt is counted", r.Err, fields)
	}
	if l.begin(now, r.Topic); !r.Repeated {
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, Failures: r.Failures, Wait: r.Wait, Err: r.Err})
	}
}

func (l *reportLog) exhausted(now time.Time, r dispatch.Report, fields watermill.LogFields) {
	// Cause: Concurrency publishes took longer than PublishTimeout.
	// Cure: check the broker; restart the process if they never return.
	l.logger.Error("all publish slots of the topic hang: nothing more is published to it until some return",
		ErrPublishTimeout, fields)
	if l.begin(now, r.Topic); !r.Repeated {
		l.obs.paused(observe.TopicPaused{Topic: r.Topic, Failures: r.Failures, Err: ErrPublishTimeout})
	}
}

// rejected logs the first failure of a topic in a minute as an error, and others at debug level.
func (l *reportLog) rejected(r dispatch.Report, fields watermill.LogFields) {
	if r.Repeated {
		l.logger.Debug("publish failed: retrying", fields.Add(watermill.LogFields{"err": r.Err.Error()}))
	} else {
		// Cause: the broker or the publisher refused the message.
		// Cure: its key is blocked until it is published or dead.
		l.logger.Error("publish failed: retrying: more failures of the topic are logged at debug level for a "+
			"minute", r.Err, fields)
	}
}

// observers are the observers of the handle. Workers call those of publishes, the reporter all others: the methods for
// those only queue.
type observers struct {
	db, scope string
	ctx       context.Context
	reports   *reporter
	logger    watermill.LoggerAdapter // never blocks
	publishes []observe.PublishObserver
	deaths    []observe.DeadObserver
	topics    []observe.TopicObserver
	engines   []meter.ForwarderObserver
	ahead     atomic.Int64 // nanoseconds by which the database's clock is ahead of this one
}

func newObservers(
	ctx context.Context, db, scope string, list []observe.Observer, reports *reporter, logger watermill.LoggerAdapter,
) observers {
	return observers{
		db: db, scope: scope, ctx: ctx, reports: reports, logger: logger,
		publishes: only[observe.PublishObserver](list), deaths: only[observe.DeadObserver](list),
		topics: only[observe.TopicObserver](list), engines: only[meter.ForwarderObserver](list),
	}
}

// only returns the observers that implement T.
func only[T any](list []observe.Observer) (of []T) {
	for _, o := range list {
		if t, ok := o.(T); ok {
			of = append(of, t)
		}
	}
	return of
}

// clock compares the database's time in an answer with the time at which the query was sent. The error is at most the
// network latency there.
func (o *observers) clock(said, asked time.Time) { o.ahead.Store(int64(said.Sub(asked))) }

// publishStart sets and returns the context of the message.
func (o *observers) publishStart(msg *message.Message, call *dispatch.Call) context.Context {
	ctx := msg.Context()
	if len(o.publishes) == 0 {
		return ctx
	}
	start := observe.PublishStart{
		DB: o.db, Scope: o.scope, Topic: call.Row.Topic, Message: msg, Attempt: call.Attempt, Probe: call.Probe,
		EnqueuedAt: call.Row.CreatedAt,
	}
	for _, one := range o.publishes {
		guard(func() {
			if with := one.PublishStart(ctx, start); with != nil {
				ctx = with
			}
		}, o.failed(one))
	}
	msg.SetContext(ctx)
	return ctx
}

func (o *observers) publishEnd(ctx context.Context, call *dispatch.Call, res dispatch.Result) {
	if len(o.publishes) == 0 {
		return
	}
	end := observe.PublishEnd{
		DB: o.db, Scope: o.scope, Topic: call.Row.Topic, UUID: call.Row.UUID, ID: call.Row.ID, Attempt: call.Attempt,
		Age:      max(0, time.Since(call.Row.CreatedAt)+time.Duration(o.ahead.Load())),
		Duration: time.Since(call.Started), Err: res.Err,
	}
	switch res.Verdict {
	case dispatch.Unknown:
		end.Verdict = Unknown.String()
	case dispatch.Retry:
		end.Verdict = Retry.String()
	case dispatch.Unavailable:
		end.Verdict = Unavailable.String()
	case dispatch.Permanent:
		end.Verdict = Permanent.String()
	}
	for _, one := range o.publishes {
		guard(func() { one.PublishEnd(ctx, end) }, o.failed(one))
	}
}

func (o *observers) failed(one observe.Observer) func(error) {
	return func(err error) {
		// Cause: a bug of an observer; see the field stack.
		// Cure: publishing goes on.
		o.logger.Error("observer panicked", err, watermill.LogFields{
			"observer": fmt.Sprintf("%T", one), "stack": string(debug.Stack()),
		})
	}
}

func (o *observers) dead(d observe.MessageDead) {
	d.DB, d.Scope = o.db, o.scope
	post(o, o.deaths, func(to observe.DeadObserver) { to.MessageDead(o.ctx, d) })
}

func (o *observers) paused(p observe.TopicPaused) {
	p.DB, p.Scope = o.db, o.scope
	post(o, o.topics, func(to observe.TopicObserver) { to.TopicPaused(o.ctx, p) })
}

func (o *observers) resumed(r observe.TopicResumed) {
	r.DB, r.Scope = o.db, o.scope
	post(o, o.topics, func(to observe.TopicObserver) { to.TopicResumed(o.ctx, r) })
}

func (o *observers) read(end meter.ReadEnd) {
	end.DB, end.Scope = o.db, o.scope
	post(o, o.engines, func(to meter.ForwarderObserver) { to.ReadEnd(o.ctx, end) })
}

func (o *observers) settled(end meter.SettleEnd) {
	end.DB, end.Scope = o.db, o.scope
	post(o, o.engines, func(to meter.ForwarderObserver) { to.SettleEnd(o.ctx, end) })
}

func (o *observers) cleaned(end meter.CleanEnd) {
	if end.DB = o.db; end.Rows > 0 || end.Err != nil {
		post(o, o.engines, func(to meter.ForwarderObserver) { to.CleanEnd(o.ctx, end) })
	}
}

func (o *observers) owned(lanes int) {
	own := meter.LanesOwned{DB: o.db, Scope: o.scope, Lanes: lanes}
	post(o, o.engines, func(to meter.ForwarderObserver) { to.LanesOwned(o.ctx, own) })
}

// post queues a separate report for each observer, so that one that fails does not stop the others.
func post[T any](o *observers, to []T, fn func(T)) {
	for _, one := range to {
		o.reports.post(func() { fn(one) })
	}
}
