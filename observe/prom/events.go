package prom

import (
	"context"
	"errors"
	"strings"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/prometheus/client_golang/prometheus"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// TxStart implements meter.TxObserver.
func (o *observer) TxStart(ctx context.Context, start meter.TxStart) context.Context {
	o.dbs.of(start.DB, o.newDB)
	return ctx
}

// TxEnd implements meter.TxObserver.
func (o *observer) TxEnd(_ context.Context, end meter.TxEnd) {
	result := "failed"
	switch {
	case end.Err == nil:
		result = "committed"
	case errors.Is(end.Err, outbox.ErrRolledBack):
		result = "rolled_back"
	case errors.Is(end.Err, outbox.ErrCommitUnknown):
		result = "unknown"
	}
	o.dbs.of(end.DB, o.newDB).tx[result].Observe(end.Duration.Seconds())
}

// WriteStart implements observe.WriteObserver.
func (o *observer) WriteStart(ctx context.Context, start observe.WriteStart) context.Context {
	o.topics.of(topicKey{start.DB, start.Topic}, o.newTopic)
	return ctx
}

// WriteEnd implements observe.WriteObserver.
func (o *observer) WriteEnd(_ context.Context, end observe.WriteEnd) {
	t := o.topics.of(topicKey{end.DB, end.Topic}, o.newTopic)
	if end.Err != nil {
		t.writeErrors.Inc()
		return
	}
	t.written.Add(float64(end.Messages))
	t.writtenBytes.Add(float64(end.Bytes))
}

// delayed is the context key that marks a message that was delayed on purpose.
type delayed struct{}

// PublishStart implements observe.PublishObserver.
func (o *observer) PublishStart(ctx context.Context, start observe.PublishStart) context.Context {
	o.topics.of(topicKey{start.DB, start.Topic}, o.newTopic)
	if m := start.Message.Metadata; m[delay.DelayedUntilKey] != "" || m[delay.DelayedForKey] != "" {
		return context.WithValue(ctx, delayed{}, true)
	}
	return ctx
}

// PublishEnd implements observe.PublishObserver.
func (o *observer) PublishEnd(ctx context.Context, end observe.PublishEnd) {
	t := o.topics.of(topicKey{end.DB, end.Topic}, o.newTopic)
	t.publishSeconds.Observe(end.Duration.Seconds())
	switch {
	case end.Err == nil:
		t.published["published"].Inc()
		if ctx.Value(delayed{}) == nil {
			t.lag.Observe(end.Age.Seconds())
		}
	case end.Verdict == "":
		t.published["stopped"].Inc()
	default:
		count(t.published, end.Verdict)
	}
}

// count increments the counter of a value. It ignores values that a later version of the root module added.
func count(all map[string]prometheus.Counter, value string) {
	if c := all[value]; c != nil {
		c.Inc()
	}
}

// MessageDead implements observe.DeadObserver.
func (o *observer) MessageDead(_ context.Context, dead observe.MessageDead) {
	o.topics.of(topicKey{dead.DB, dead.Topic}, o.newTopic).dead.Inc()
}

// HandleStart implements observe.HandleObserver.
func (o *observer) HandleStart(ctx context.Context, start observe.HandleStart) context.Context {
	o.handlers.of(handlerKey{start.DB, start.Service, start.Handler, start.Topic}, o.newHandler)
	return ctx
}

// HandleEnd implements observe.HandleObserver.
func (o *observer) HandleEnd(_ context.Context, end observe.HandleEnd) {
	h := o.handlers.of(handlerKey{end.DB, end.Service, end.Handler, end.Topic}, o.newHandler)
	count(h.handled, strings.ReplaceAll(end.Outcome.String(), " ", "_"))
	// A mismatch is reported in addition to its duplicate, and only one message of a batch has a duration.
	if end.Outcome != observe.Mismatch && (end.Batch == 0 || end.Duration > 0) {
		h.seconds.Observe(end.Duration.Seconds())
	}
}

// TopicPaused implements observe.TopicObserver.
func (o *observer) TopicPaused(_ context.Context, p observe.TopicPaused) {
	o.setPaused(p.DB, p.Scope, p.Topic, p.ByOperator, 1)
}

// TopicResumed implements observe.TopicObserver.
func (o *observer) TopicResumed(_ context.Context, r observe.TopicResumed) {
	o.setPaused(r.DB, r.Scope, r.Topic, r.ByOperator, 0)
}

func (o *observer) setPaused(db, scope, topic string, byOperator bool, to float64) {
	who := pausers[0]
	if byOperator {
		who = pausers[1]
	}
	for _, by := range pausers {
		g := o.metrics.paused.WithLabelValues(labels(db, scope, topic, by)...) // creates both series, at zero
		if by == who {
			g.Set(to)
		}
	}
}

// ReadEnd implements meter.ForwarderObserver.
func (o *observer) ReadEnd(_ context.Context, end meter.ReadEnd) {
	s := o.scopes.of(scopeKey{end.DB, end.Scope}, o.newScope)
	s.readSeconds.Observe(end.Duration.Seconds())
	s.readRows.Add(float64(end.Rows))
	if end.Err != nil {
		s.readErrors.Inc()
	}
}

// SettleEnd implements meter.ForwarderObserver.
func (o *observer) SettleEnd(_ context.Context, end meter.SettleEnd) {
	s := o.scopes.of(scopeKey{end.DB, end.Scope}, o.newScope)
	s.settleSeconds.Observe(end.Duration.Seconds())
	if end.Err != nil {
		s.settleErrors.Inc()
		return
	}
	s.settled["done"].Add(float64(end.Done))
	s.settled["failed"].Add(float64(end.Failed))
	s.settled["dead"].Add(float64(end.Dead))
}

// CleanEnd implements meter.ForwarderObserver.
func (o *observer) CleanEnd(_ context.Context, end meter.CleanEnd) {
	own := labels(end.DB, end.Table)
	rows, errs := o.metrics.cleaned.WithLabelValues(own...), o.metrics.cleanErrors.WithLabelValues(own...)
	rows.Add(float64(end.Rows))
	if end.Err != nil {
		errs.Inc()
	}
}

// LanesOwned implements meter.ForwarderObserver. A forwarder without lanes pauses no topics, so its pauses are removed.
func (o *observer) LanesOwned(_ context.Context, owned meter.LanesOwned) {
	o.scopes.of(scopeKey{owned.DB, owned.Scope}, o.newScope).lanes.Set(float64(owned.Lanes))
	if owned.Lanes == 0 {
		own := labels(owned.DB, owned.Scope)
		o.metrics.paused.DeletePartialMatch(prometheus.Labels{"db": own[0], "scope": own[1]})
	}
}
