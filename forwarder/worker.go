package forwarder

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// send passes one message to its publisher and returns when the publisher has answered. The call's context ends when
// the forwarder stops waiting.
type send func(call *callContext, d core.Delivery, msg *message.Message) error

// errEnded is the result of a publish that ended its goroutine.
var errEnded = fmt.Errorf("%w: %w", errPublishPanic, errGoexit)

// worker is a goroutine that publishes until there is nothing to publish. Only it uses these fields.
type worker struct {
	e       *engine
	started bool            // it has asked for a call
	call    *dispatch.Call  // in flight; its context is its Tag
	next    *callContext    // of the next call
	result  dispatch.Result // of the call
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
			w.e.step(func(now time.Time, c *coordinator.Coordinator) { c.WorkerEnded(now, w.call, w.result) })
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

func (w *worker) locked(now time.Time, c *coordinator.Coordinator) {
	w.call = c.Next(now, w.call, w.result, w.next, !w.started)
}

// contextOf returns the context of a call in flight.
func contextOf(call *dispatch.Call) *callContext { return call.Tag.(*callContext) }

// publish sends one message and determines the verdict on the result. Everything that it calls may be user code.
func (w *worker) publish() {
	e, r, call := w.e, w.call.Row, w.next
	w.result = dispatch.Result{Verdict: dispatch.Unknown, Err: errEnded} // replaced at the end
	msg, bad := newMessage(r)
	msg.SetContext(call)
	ctx := e.obs.publishStart(msg, w.call)
	defer func() { e.obs.publishEnd(ctx, w.call, w.result) }() // even if the publisher ends this goroutine
	err := bad
	if bad == nil {
		d := core.Delivery{
			ID: r.ID, Topic: r.Topic, Key: r.Key, Attempt: w.call.Attempt, EnqueuedAt: r.CreatedAt, Last: e.isLast(w.call),
		}
		guard(func() { err = e.send(call, d, msg) }, func(failed error) {
			err = fmt.Errorf("%w: %w", errPublishPanic, failed)
			// Cause: a bug of the publisher; see the field stack.
			// Cure: the attempt is counted and the message retried.
			e.logger.Error("publisher panicked", err, watermill.LogFields{
				"topic": r.Topic, "id": r.ID, "stack": string(debug.Stack()),
			})
		})
	}
	switch {
	case err == nil:
		w.result = dispatch.Result{}
	case bad != nil:
		w.result = dispatch.Result{Verdict: dispatch.Permanent, Err: err}
	default:
		if context.Cause(call) == ErrPublishTimeout { // this may run before expire has reported the timeout
			err = e.timeout()
		}
		w.result = e.judge(w.call, err)
	}
}

// newMessage makes the message of a row, even if its metadata is invalid.
func newMessage(r *dispatch.Row) (*message.Message, error) {
	msg := message.NewMessage(r.UUID, r.Payload)
	var err error
	if msg.Metadata, err = decodeMetadata(r.Metadata); err != nil {
		return msg, fmt.Errorf("%w: %w", errBadMetadata, err)
	}
	core.SetKey(msg, r.Key)
	setDelayedUntil(msg, r.CreatedAt)
	return msg, nil
}

// setDelayedUntil adds to a delay that counts from the insert the time at which it ends. Code that copies the message's
// metadata, such as a handler or a requeuer, would otherwise delay the copy again by the same time.
func setDelayedUntil(msg *message.Message, createdAt time.Time) {
	delayed := msg.Metadata[delay.DelayedForKey]
	if delayed == "" || msg.Metadata[delay.DelayedUntilKey] != "" {
		return
	}
	if d, err := time.ParseDuration(delayed); err == nil {
		msg.Metadata[delay.DelayedUntilKey] = createdAt.Add(d).UTC().Format(time.RFC3339Nano)
	}
}

// isLast reports whether a failure is the last one of a Subscriber's message. Each attempt has one answer, which the
// handler's middlewares get too: they write the dead letter. The age is by this process's clock. For a Forwarder the
// database decides.
func (e *engine) isLast(call *dispatch.Call) bool {
	return e.to == nil && e.cfg.MaxAttempts > 0 && call.Attempt >= e.cfg.MaxAttempts &&
		(e.cfg.MinDeadAge < 0 || call.Started.Sub(call.Row.CreatedAt) >= e.cfg.MinDeadAge)
}

// judge returns the result of a call that failed.
func (e *engine) judge(call *dispatch.Call, err error) dispatch.Result {
	result := dispatch.Result{Verdict: e.verdict(contextOf(call), call.Row.Topic, err), Err: err}
	if result.Verdict != dispatch.Retry {
		return result
	}
	if n, ok := err.(*nacked); ok {
		result.Wait, result.Snooze = n.wait, n.snooze
	}
	if !result.Snooze && e.isLast(call) {
		result.Verdict = dispatch.Permanent
	}
	return result
}

// verdict returns the verdict on a message whose publish failed.
func (e *engine) verdict(ctx *callContext, topic string, err error) (v dispatch.Verdict) {
	if err == errNotDelivered || context.Cause(ctx) == errStopped {
		return dispatch.Aborted
	}
	v = dispatch.Unknown
	guard(func() {
		switch e.to.verdict(topic, err) {
		case Retry:
			v = dispatch.Retry
		case Unavailable:
			v = dispatch.Unavailable
		case Permanent:
			v = dispatch.Permanent
		}
	}, func(failed error) {
		// Cause: a bug of Config.Classify.
		// Cure: only the circuit breaker notices outages.
		e.logger.Error("panic in Classify: the error counts as not classified", failed, nil)
	})
	return v
}

// expire ends calls that take too long. The publisher's later result counts only if it is a success.
func (e *engine) expire(calls []*dispatch.Call) {
	e.step(func(_ time.Time, c *coordinator.Coordinator) { calls = c.Expiring(calls) })
	for _, call := range calls { // before Classify is called, which may be slow
		contextOf(call).cancel(ErrPublishTimeout)
	}
	for _, call := range calls {
		result := e.judge(call, e.timeout())
		e.step(func(now time.Time, c *coordinator.Coordinator) { c.TimedOut(now, call, result) })
	}
}

// timeout returns the error of a call whose context ended by its timeout, whatever error the publisher returns.
func (e *engine) timeout() error {
	return fmt.Errorf("%w after %s", ErrPublishTimeout, e.cfg.PublishTimeout)
}

// giveUp ends the contexts of all calls in flight, and returns how many there are.
func (e *engine) giveUp() int {
	var calls []*dispatch.Call
	e.step(func(_ time.Time, c *coordinator.Coordinator) { calls = c.InFlight() })
	for _, call := range calls {
		contextOf(call).cancel(errStopped)
	}
	return len(calls)
}

// callContext is the context of one Publish call. Most publishers never use its channel, so the channel is made only
// when it is first needed.
type callContext struct {
	base context.Context // for its values; never ends

	mu              sync.Mutex
	inner           context.Context // made at the first call of Done
	end             context.CancelCauseFunc
	cause           error         // why it ended
	recallChan      chan struct{} // made at the first call of recalled; closed = take the message back
	recallRequested bool          // the message is to be taken back
}

// Deadline returns none: an in-process Pub/Sub may pass the context on to handlers that have more time.
func (c *callContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done also makes the context that derived contexts find by Value, so that they need no goroutine.
func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.make()
	return c.inner.Done()
}

// make must be called with mu held.
func (c *callContext) make() {
	if c.inner == nil {
		c.inner, c.end = context.WithCancelCause(c.base)
		if c.cause != nil {
			c.end(c.cause)
		}
	}
}

func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.cause {
	case nil:
		return nil
	case ErrPublishTimeout:
		return context.DeadlineExceeded
	}
	return context.Canceled
}

func (c *callContext) Value(key any) any {
	c.mu.Lock()
	inner := c.inner
	c.mu.Unlock()
	if inner != nil {
		return inner.Value(key)
	}
	return c.base.Value(key)
}

// cancel ends the context; only the first call counts. context.Cause returns the cause unless it is context.Canceled.
func (c *callContext) cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	if c.cause = cause; c.inner != nil {
		c.end(cause)
	} else if cause != context.Canceled {
		c.make()
	}
}

// recalled returns a channel that is closed when a message that no handler has received yet must be taken back.
func (c *callContext) recalled() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recallChan == nil {
		if c.recallChan = make(chan struct{}); c.recallRequested {
			close(c.recallChan)
		}
	}
	return c.recallChan
}

func (c *callContext) recall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.recallRequested && c.recallChan != nil {
		close(c.recallChan)
	}
	c.recallRequested = true
}

// decodeMetadata reads a JSON object of strings. Nearly all are plain, and are read four times as fast as with package
// json, which decides about all others.
func decodeMetadata(text []byte) (m message.Metadata, err error) {
	if m, ok := plainMetadata(string(text)); ok {
		return m, nil
	}
	if err = json.Unmarshal(text, &m); m == nil { // JSON null
		m = message.Metadata{}
	}
	return m, err
}

// plainMetadata reads an object whose strings contain only unescaped ASCII characters.
func plainMetadata(text string) (m message.Metadata, ok bool) {
	p := plainJSON{text}
	if !p.next('{') {
		return nil, false
	}
	m = message.Metadata{}
	if p.next('}') {
		return m, p.text == ""
	}
	for {
		key, isKey := p.string()
		if !isKey || !p.next(':') {
			return nil, false
		}
		value, isString := p.string()
		if !isString {
			return nil, false
		}
		m[key] = value
		if !p.next(',') {
			return m, p.next('}') && p.text == ""
		}
	}
}

// plainJSON is the text that is left to read.
type plainJSON struct{ text string }

// next skips spaces and one character, if it is next.
func (p *plainJSON) next(c byte) bool {
	for i := range len(p.text) {
		if p.text[i] == c {
			p.text = p.text[i+1:]
			return true
		}
		if p.text[i] != ' ' {
			break
		}
	}
	return false
}

func (p *plainJSON) string() (s string, ok bool) {
	if !p.next('"') {
		return "", false
	}
	for i := range len(p.text) {
		switch c := p.text[i]; {
		case c == '"':
			s, p.text = p.text[:i], p.text[i+1:]
			return s, true
		case c < ' ' || c > '~' || c == '\\':
			return "", false
		}
	}
	return "", false
}
