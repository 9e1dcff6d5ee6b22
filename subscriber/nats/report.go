package nats

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// reports tells observers of the consumer, in a goroutine of its own, so that the reader waits for none.
type reports struct {
	to     []observe.PartitionObserver
	queue  chan observe.PartitionState
	ended  chan struct{}
	logger watermill.LoggerAdapter
}

func newReports(observers []observe.Observer, logger watermill.LoggerAdapter) *reports {
	r := &reports{queue: make(chan observe.PartitionState, 64), ended: make(chan struct{}), logger: logger}
	for _, o := range observers {
		if to, ok := o.(observe.PartitionObserver); ok {
			r.to = append(r.to, to)
		}
	}
	go func() {
		defer close(r.ended)
		for state := range r.queue {
			for _, to := range r.to {
				r.tell(to, state)
			}
		}
	}()
	return r
}

func (r *reports) tell(to observe.PartitionObserver, state observe.PartitionState) {
	defer func() {
		if p := recover(); p != nil {
			// Cause: an observer that was given to the subscriber panicked.
			// Cure: fix it; the stack is in the line. The subscriber goes on.
			r.logger.Error("observer panicked", core.Panicked(p), watermill.LogFields{
				"observer": fmt.Sprintf("%T", to), "stack": string(debug.Stack()),
			})
		}
	}()
	to.PartitionState(context.Background(), state)
}

// post leaves a report out if too many wait: the next one comes a second later.
func (r *reports) post(state observe.PartitionState) {
	if len(r.to) == 0 {
		return
	}
	select {
	case r.queue <- state:
	default:
	}
}

// stop returns when all was told.
func (r *reports) stop() {
	close(r.queue)
	<-r.ended
}

func (r *reader) state() observe.PartitionState {
	return observe.PartitionState{Group: r.durable, Topic: r.topic}
}

// reportGone tells that another process owns the consumer, or none.
func (r *reader) reportGone() { r.reports.post(r.state()) }

// report tells how the consumer is, if this process owns it.
func (r *reader) report() {
	t := r.term
	if t == nil {
		return
	}
	state := r.state()
	failing, since := t.window.Failing()
	state.Owned, state.Lag = true, int64(r.behind) //nolint:gosec // a stream has fewer
	state.Ahead, state.Pending, state.Running = t.window.Records(), t.window.Undone(), t.running
	if state.BlockedKeys = failing; failing > 0 {
		state.OldestBlocked = time.Since(since)
	}
	if !t.paused.IsZero() {
		state.Paused, state.PausedFor = t.reason(), time.Since(t.paused)
		t.tellPaused(since)
	}
	r.reports.post(state)
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
	case t.window.Records() < t.cfg.MaxAhead:
		return observe.PausedByBytes
	}
	return observe.PausedByHandlers
}

// tellPaused logs, once a minute, that a message which fails keeps the consumer from being read. That handlers are
// slower than JetStream is no error.
func (t *term) tellPaused(since time.Time) {
	if t.reason() != observe.PausedByBlockedKey || !t.lines.Due("paused") {
		return
	}
	oldest := t.window.Oldest()
	// Cause: messages keep failing, and as many wait behind them as may be in memory.
	// Cure: fix what the inbox row of the message names as its last error (outboxctl messages list), or raise MaxAhead.
	t.logger.Error("consumer is paused: MaxAhead messages or MaxBytes are not done, and the oldest keeps failing: "+
		"fix its handler, or let it declare the message poison", errors.New("handler fails"), watermill.LogFields{
		"failures": oldest.Failures, "stream_seq": oldest.Pos, "failing_since": since, "waiting": t.window.Undone(),
	})
}
