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

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// send hands one message to its publisher and returns when that has answered. The call ends when the forwarder
// gives up waiting.
type send func(call *callContext, d core.Delivery, msg *message.Message) error

// errEnded is what became of a publish that ended its goroutine.
var errEnded = fmt.Errorf("%w: %w", ErrPublishPanic, errGoexit)

// worker is a goroutine that publishes until there is nothing to publish now.
type worker struct {
	e       *engine
	started bool         // it has looked for a call
	call    *board.Call  // under way; guarded by e.mu, as the next
	ctx     *callContext // its context
	result  board.Result // of the call; only the worker's own
}

// start starts workers. It is called under e.mu.
func (e *engine) start(workers int) {
	for range workers {
		w := &worker{e: e}
		e.workers[w] = struct{}{}
		e.publishing.Add(1)
		go w.work()
	}
}

func (w *worker) work() {
	pprof.SetGoroutineLabels(w.e.workerLabels)
	defer w.e.publishing.Done()
	defer w.e.step(func(now time.Time, m *machine.Machine) {
		if w.call != nil { // the publisher, Classify or an observer ended this goroutine
			m.WorkerEnded(now, w.call, w.result)
		}
		delete(w.e.workers, w)
	})
	for w.e.step(w.turn); w.call != nil; w.e.step(w.turn) {
		w.publish()
	}
}

// turn tells what became of a call, if there was one, and takes the next.
func (w *worker) turn(now time.Time, m *machine.Machine) {
	first := !w.started
	w.started = true
	if w.call = m.Turn(now, w.call, w.result, first); w.call == nil {
		w.ctx = nil
		return
	}
	w.ctx = &callContext{base: w.e.values}
}

// publish sends one message and finds the verdict on what came of it. All that it calls may be the user's code.
func (w *worker) publish() {
	e, r := w.e, w.call.Row
	w.result = board.Result{Verdict: board.Unknown, Err: errEnded} // unless it gets to the end
	msg, bad := newMessage(r)
	msg.SetContext(w.ctx)
	ctx := e.obs.publishStart(msg, w.call)
	defer func() { e.obs.publishEnd(ctx, w.call, w.result) }() // also if the publisher ends this goroutine
	err := bad
	if bad == nil {
		d := core.Delivery{ID: r.ID, Topic: r.Topic, Key: r.Key, Attempt: w.call.Attempt, EnqueuedAt: r.CreatedAt}
		guard(func() { err = e.send(w.ctx, d, msg) }, func(failed error) {
			err = fmt.Errorf("%w: %w", ErrPublishPanic, failed)
			// Cause: a bug of the publisher; the field stack says where.
			// Cure: fix it; the message is charged an attempt, and retried.
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
		if context.Cause(w.ctx) == ErrPublishTimeout { // the waiting goroutine may be here before expire has told of it
			err = e.timeout()
		}
		w.result = board.Result{Verdict: e.verdict(w.ctx, r.Topic, err), Err: err}
	}
}

// newMessage makes the message of a row, also if its metadata are none.
func newMessage(r *board.Row) (*message.Message, error) {
	msg := message.NewMessage(r.UUID, r.Payload)
	var err error
	if msg.Metadata, err = decodeMetadata(r.Metadata); err != nil {
		return msg, fmt.Errorf("%w: %w", errBadMetadata, err)
	}
	if r.Key != "" && msg.Metadata[outbox.MetadataKey] == "" {
		msg.Metadata[outbox.MetadataKey] = r.Key
	}
	saySince(msg, r.CreatedAt)
	return msg, nil
}

// saySince adds to a delay from the insert on when that is over. Code that copies the metadata of the message, a
// handler or a requeuer, would delay the copy by as much again.
func saySince(msg *message.Message, createdAt time.Time) {
	delayed := msg.Metadata[delay.DelayedForKey]
	if delayed == "" || msg.Metadata[delay.DelayedUntilKey] != "" {
		return
	}
	if d, err := time.ParseDuration(delayed); err == nil {
		msg.Metadata[delay.DelayedUntilKey] = createdAt.Add(d).UTC().Format(time.RFC3339Nano)
	}
}

// verdict says what becomes of a message whose publish failed.
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
		// Cause: a bug of forwarder.Config.Classify.
		// Cure: fix it: until then an outage is recognised only when all publishes of a topic fail.
		e.logger.Error("panic in Classify: the error counts as not classified", failed, nil)
	})
	return v
}

// expire ends calls that take too long. What the publisher returns later only counts if it is a success.
func (e *engine) expire(calls []*board.Call) {
	contexts := make([]*callContext, len(calls))
	e.step(func(time.Time, *machine.Machine) {
		for w := range e.workers {
			for i, c := range calls {
				if w.call == c {
					contexts[i] = w.ctx
				}
			}
		}
	})
	for _, ctx := range contexts { // before Classify is asked, which may take its time
		if ctx != nil {
			ctx.over(ErrPublishTimeout)
		}
	}
	for i, c := range calls {
		if contexts[i] == nil {
			continue // it has returned meanwhile
		}
		err := e.timeout()
		result := board.Result{Err: err, Verdict: e.verdict(contexts[i], c.Row.Topic, err)}
		e.step(func(now time.Time, m *machine.Machine) { m.TimedOut(now, c, result) })
	}
}

// timeout is the error of a call whose context has ended for its time-out, whatever the publisher makes of that.
func (e *engine) timeout() error {
	return fmt.Errorf("%w after %s", ErrPublishTimeout, e.cfg.PublishTimeout)
}

// giveUp ends the contexts of all calls that are under way, and returns how many those are.
func (e *engine) giveUp() int {
	var contexts []*callContext
	e.step(func(time.Time, *machine.Machine) {
		for w := range e.workers {
			if w.ctx != nil {
				contexts = append(contexts, w.ctx)
			}
		}
	})
	for _, ctx := range contexts {
		ctx.over(errStopped)
	}
	return len(contexts)
}
