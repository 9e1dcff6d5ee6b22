package forwarder

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/observe"
)

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
	engines   []observe.EngineObserver
	ahead     atomic.Int64 // nanoseconds by which the database's clock is ahead of this one
}

func newObservers(
	ctx context.Context, db, scope string, list []observe.Observer, reports *reporter, logger watermill.LoggerAdapter,
) observers {
	return observers{
		db: db, scope: scope, ctx: ctx, reports: reports, logger: logger,
		publishes: only[observe.PublishObserver](list), deaths: only[observe.DeadObserver](list),
		topics: only[observe.TopicObserver](list), engines: only[observe.EngineObserver](list),
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
func (o *observers) publishStart(msg *message.Message, c *board.Call) context.Context {
	ctx := msg.Context()
	if len(o.publishes) == 0 {
		return ctx
	}
	start := observe.PublishStart{
		DB: o.db, Scope: o.scope, Topic: c.Row.Topic, Message: msg, Attempt: c.Attempt, Probe: c.Probe,
		EnqueuedAt: c.Row.CreatedAt,
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

func (o *observers) publishEnd(ctx context.Context, c *board.Call, res board.Result) {
	if len(o.publishes) == 0 {
		return
	}
	end := observe.PublishEnd{
		DB: o.db, Scope: o.scope, Topic: c.Row.Topic, UUID: c.Row.UUID, ID: c.Row.ID, Attempt: c.Attempt,
		EnqueuedAt: c.Row.CreatedAt, Age: max(0, time.Since(c.Row.CreatedAt)+time.Duration(o.ahead.Load())),
		Duration: time.Since(c.Started), Err: res.Err,
	}
	switch res.Verdict {
	case board.Unknown:
		end.Verdict = Unknown.String()
	case board.Retry:
		end.Verdict = Retry.String()
	case board.Unavailable:
		end.Verdict = Unavailable.String()
	case board.Permanent:
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
	tell(o, o.deaths, func(to observe.DeadObserver) { to.MessageDead(o.ctx, d) })
}

func (o *observers) paused(p observe.TopicPaused) {
	p.DB, p.Scope = o.db, o.scope
	tell(o, o.topics, func(to observe.TopicObserver) { to.TopicPaused(o.ctx, p) })
}

func (o *observers) resumed(r observe.TopicResumed) {
	r.DB, r.Scope = o.db, o.scope
	tell(o, o.topics, func(to observe.TopicObserver) { to.TopicResumed(o.ctx, r) })
}

func (o *observers) read(end observe.ReadEnd) {
	end.DB, end.Scope = o.db, o.scope
	tell(o, o.engines, func(to observe.EngineObserver) { to.ReadEnd(o.ctx, end) })
}

func (o *observers) settled(end observe.SettleEnd) {
	end.DB, end.Scope = o.db, o.scope
	tell(o, o.engines, func(to observe.EngineObserver) { to.SettleEnd(o.ctx, end) })
}

func (o *observers) cleaned(end observe.CleanEnd) {
	if end.DB = o.db; end.Rows > 0 || end.Err != nil {
		tell(o, o.engines, func(to observe.EngineObserver) { to.CleanEnd(o.ctx, end) })
	}
}

func (o *observers) owned(lanes int) {
	own := observe.LanesOwned{DB: o.db, Scope: o.scope, Lanes: lanes}
	tell(o, o.engines, func(to observe.EngineObserver) { to.LanesOwned(o.ctx, own) })
}

// tell queues a separate report for each observer, so that one that fails does not stop the others.
func tell[T any](o *observers, to []T, fn func(T)) {
	for _, one := range to {
		o.reports.post(func() { fn(one) })
	}
}
