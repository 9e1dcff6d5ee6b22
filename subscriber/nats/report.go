package nats

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/observe"
)

func (r *reader) state() observe.PartitionState {
	return observe.PartitionState{Group: r.durable, Topic: r.topic}
}

// reportGone tells that another process owns the consumer, or none.
func (r *reader) reportGone() { r.reports.Post(r.state()) }

// report tells how the consumer is, if this process owns it.
func (r *reader) report() {
	t := r.term
	if t == nil {
		return
	}
	t.tellPaused()
	state := r.state()
	state.Owned, state.Lag = true, int64(r.behind) //nolint:gosec // a stream has fewer
	r.reports.Post(inbound.Describe(state, t.window, t.running, t.paused, t.reason))
}

// regulate notes since when nothing is read. By count it is the server that pauses.
func (t *term) regulate() {
	limit := int64(t.cfg.MaxBytes)
	if t.spent {
		limit /= 2
	}
	t.spent = t.window.Bytes() >= limit
	switch full := t.spent || t.window.Records() >= t.cfg.MaxAhead; {
	case !full:
		t.paused = time.Time{}
	case t.paused.IsZero():
		t.paused = time.Now()
	}
}

// reason says why nothing is read.
func (t *term) reason() observe.PauseReason {
	switch oldest := t.window.Oldest(); {
	case oldest != nil && oldest.Failures > 0:
		return observe.PausedByBlockedKey
	case inbound.Hung(t.paused, t.settled, time.Now()):
		return observe.PausedByHungHandlers
	case t.window.Records() < t.cfg.MaxAhead:
		return observe.PausedByBytes
	}
	return observe.PausedByHandlers
}

// tellPaused logs, once a minute, that a message which fails keeps the consumer from being read, or handlers that never
// return. That they are slower than JetStream is no error.
func (t *term) tellPaused() {
	if t.paused.IsZero() {
		return
	}
	reason := t.reason()
	blocked, hung := reason == observe.PausedByBlockedKey, reason == observe.PausedByHungHandlers
	switch {
	case !blocked && !hung, !t.lines.Due("paused"):
	case blocked:
		t.tellBlocked()
	case hung:
		t.tellHung()
	}
}

func (t *term) tellHung() {
	// Cause: handlers wait for something without a time-out, and take all places of the subscription.
	// Cure: find what they wait for in a goroutine dump of the process, and bound that by the message's context.
	t.logger.Error("consumer is paused, and no handler has returned for five minutes: "+
		"bound what handlers wait for, and restart the process", inbound.ErrHung, watermill.LogFields{
		"handlers": t.running, "paused_since": t.paused, "waiting": t.window.Undone(),
	})
}

func (t *term) tellBlocked() {
	oldest := t.window.Oldest()
	_, since := t.window.Failing()
	// Cause: messages keep failing, and as many wait behind them as may be in memory.
	// Cure: fix what the inbox row of the message names as its last error (outboxctl messages list), or raise MaxAhead.
	t.logger.Error("consumer is paused: MaxAhead messages or MaxBytes are not done, and the oldest keeps failing: "+
		"fix its handler, or let it declare the message poison", errors.New("handler fails"), watermill.LogFields{
		"failures": oldest.Failures, "stream_seq": oldest.Pos, "failing_since": since, "waiting": t.window.Undone(),
	})
}
