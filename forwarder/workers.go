package forwarder

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// send passes one message to its publisher and returns when the publisher has answered. The call's context ends when
// the forwarder stops waiting.
type send func(call *callContext, d core.Delivery, msg *message.Message) error

// errEnded is the result of a publish that ended its goroutine.
var errEnded = fmt.Errorf("%w: %w", ErrPublishPanic, errGoexit)

// worker is a goroutine that publishes until there is nothing to publish. Only it uses these fields.
type worker struct {
	e       *engine
	started bool         // it has asked for a call
	call    *board.Call  // in flight; its context is its Tag
	next    *callContext // of the next call
	result  board.Result // of the call
}

// start starts workers. e.mu must be held.
func (e *engine) start(workers int) {
	for range workers {
		e.publishing.Add(1)
		go (&worker{e: e}).work()
	}
}

func (w *worker) work() {
	pprof.SetGoroutineLabels(w.e.workerLabels)
	defer w.e.publishing.Done()
	defer func() {
		if w.call != nil { // the publisher, Classify or an observer ended this goroutine
			w.e.step(func(now time.Time, m *machine.Machine) { m.WorkerEnded(now, w.call, w.result) })
		}
	}()
	for w.turn(); w.call != nil; w.turn() {
		w.publish()
	}
}

// turn reports the result of a call, if there was one, and takes the next.
func (w *worker) turn() {
	w.next = &callContext{base: w.e.values} // made here, because all workers wait for the lock
	w.e.step(w.locked)
	w.started = true
}

func (w *worker) locked(now time.Time, m *machine.Machine) {
	w.call = m.Turn(now, w.call, w.result, w.next, !w.started)
}

// contextOf returns the context of a call in flight.
func contextOf(c *board.Call) *callContext { return c.Tag.(*callContext) }

// publish sends one message and determines the verdict on the result. Everything that it calls may be user code.
func (w *worker) publish() {
	e, r, call := w.e, w.call.Row, w.next
	w.result = board.Result{Verdict: board.Unknown, Err: errEnded} // replaced at the end
	msg, bad := newMessage(r)
	msg.SetContext(call)
	ctx := e.obs.publishStart(msg, w.call)
	defer func() { e.obs.publishEnd(ctx, w.call, w.result) }() // even if the publisher ends this goroutine
	err := bad
	if bad == nil {
		d := core.Delivery{ID: r.ID, Topic: r.Topic, Key: r.Key, Attempt: w.call.Attempt, EnqueuedAt: r.CreatedAt}
		guard(func() { err = e.send(call, d, msg) }, func(failed error) {
			err = fmt.Errorf("%w: %w", ErrPublishPanic, failed)
			// Cause: a bug of the publisher; see the field stack.
			// Cure: the attempt is counted and the message retried.
			e.logger.Error("publisher panicked", err, watermill.LogFields{
				"topic": r.Topic, "id": r.ID, "stack": string(debug.Stack()),
			})
		})
	}
	switch {
	case err == nil:
		w.result = board.Result{}
	case bad != nil:
		w.result = board.Result{Verdict: board.Permanent, Err: err}
	default:
		if context.Cause(call) == ErrPublishTimeout { // this may run before expire has reported the timeout
			err = e.timeout()
		}
		w.result = board.Result{Verdict: e.verdict(call, r.Topic, err), Err: err}
		if n, ok := err.(*nacked); ok {
			w.result.Wait = n.wait
		}
	}
}

// newMessage makes the message of a row, even if its metadata is invalid.
func newMessage(r *board.Row) (*message.Message, error) {
	msg := message.NewMessage(r.UUID, r.Payload)
	var err error
	if msg.Metadata, err = decodeMetadata(r.Metadata); err != nil {
		return msg, fmt.Errorf("%w: %w", errBadMetadata, err)
	}
	core.SetKey(msg, r.Key)
	saySince(msg, r.CreatedAt)
	return msg, nil
}

// saySince adds to a delay that counts from the insert the time at which it ends. Code that copies the message's
// metadata, such as a handler or a requeuer, would otherwise delay the copy again by the same time.
func saySince(msg *message.Message, createdAt time.Time) {
	delayed := msg.Metadata[delay.DelayedForKey]
	if delayed == "" || msg.Metadata[delay.DelayedUntilKey] != "" {
		return
	}
	if d, err := time.ParseDuration(delayed); err == nil {
		msg.Metadata[delay.DelayedUntilKey] = createdAt.Add(d).UTC().Format(time.RFC3339Nano)
	}
}

// verdict returns the verdict on a message whose publish failed.
func (e *engine) verdict(ctx *callContext, topic string, err error) (v board.Verdict) {
	if err == errNotDelivered || context.Cause(ctx) == errStopped {
		return board.Aborted
	}
	v = board.Unknown
	guard(func() {
		switch e.to.judge(topic, err) {
		case Retry:
			v = board.Retry
		case Unavailable:
			v = board.Unavailable
		case Permanent:
			v = board.Permanent
		}
	}, func(failed error) {
		// Cause: a bug of Config.Classify.
		// Cure: only the circuit breaker notices outages.
		e.logger.Error("panic in Classify: the error counts as not classified", failed, nil)
	})
	return v
}

// expire ends calls that take too long. The publisher's later result counts only if it is a success.
func (e *engine) expire(calls []*board.Call) {
	e.step(func(_ time.Time, m *machine.Machine) { calls = m.Expiring(calls) })
	for _, c := range calls { // before Classify is called, which may be slow
		contextOf(c).over(ErrPublishTimeout)
	}
	for _, c := range calls {
		err := e.timeout()
		result := board.Result{Err: err, Verdict: e.verdict(contextOf(c), c.Row.Topic, err)}
		e.step(func(now time.Time, m *machine.Machine) { m.TimedOut(now, c, result) })
	}
}

// timeout returns the error of a call whose context ended by its timeout, whatever error the publisher returns.
func (e *engine) timeout() error {
	return fmt.Errorf("%w after %s", ErrPublishTimeout, e.cfg.PublishTimeout)
}

// giveUp ends the contexts of all calls in flight, and returns how many there are.
func (e *engine) giveUp() int {
	var calls []*board.Call
	e.step(func(_ time.Time, m *machine.Machine) { calls = m.InFlight() })
	for _, c := range calls {
		contextOf(c).over(errStopped)
	}
	return len(calls)
}
