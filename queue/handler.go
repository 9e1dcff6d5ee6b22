package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/observe"
)

// Handler handles the messages of a topic. Handle is required.
type Handler struct {
	// Handle handles a message. Nil marks it done. After an error it is retried after StoreConfig.Backoff, up to
	// StoreConfig.MaxAttempts times. outbox.Poison(err) makes it dead immediately, outbox.RetryAfter(err, wait) retries
	// it without counting an attempt, and an error that wraps outbox.ErrAlreadyProcessed marks it done. A panic counts
	// as an error. Handle must be safe for concurrent use, and return when the context ends.
	//
	// By default it runs in a transaction, which it finds in the context (outbox.PgxTx, SQLTx, InTx, PublishContext of a
	// Publisher). The ack is the first statement of that transaction, so Handle's writes are committed exactly once.
	// Handle is not called, and no attempt is counted, if another owner has the message or if there is no connection for
	// the transaction.
	Handle func(ctx context.Context, msg *Message) error
	// Detached runs Handle outside a transaction, for calls of other services; default off. The message is marked done
	// afterwards, and handled again if the process dies first. The lease is renewed; if it is lost, the context ends
	// with the cause ErrLeaseLost.
	Detached bool
	// Concurrency is the number of messages of the topic that are handled concurrently; default
	// DispatcherConfig.Concurrency, which is the limit for all topics together.
	Concurrency int
	// Timeout bounds one attempt; default 30 s, -1 = none. In a transaction DispatcherConfig.Tx.Timeout bounds it as well.
	Timeout time.Duration
}

const (
	defaultHandlerTimeout = 30 * time.Second
	// maxRepeats is how often a transaction that failed because of concurrent ones is repeated immediately.
	maxRepeats = 3
)

func (h *Handler) setDefaults(concurrency int) {
	if h.Timeout == 0 {
		h.Timeout = defaultHandlerTimeout
	}
	if h.Concurrency == 0 {
		h.Concurrency = concurrency
	}
}

func (h Handler) validate(field string) error {
	switch {
	case h.Handle == nil:
		return fmt.Errorf("%s.Handle is required: it is what handles the messages", field)
	case h.Concurrency < 1:
		return fmt.Errorf("%s.Concurrency is %d: use 0 for DispatcherConfig.Concurrency, or at least 1", field, h.Concurrency)
	case h.Timeout < -1:
		return fmt.Errorf("%s.Timeout is %s: use -1 for none", field, h.Timeout)
	}
	return nil
}

// process calls the handler and settles the message.
func (d *Dispatcher) process(c *claimed, h Handler) {
	ctx, ended := d.store.started(c.context(), d.cfg.Service, &c.Message)
	attempts, begun, err := 0, true, errGoexit
	defer func() { // even if the handler ends the goroutine
		if err != nil && context.Cause(ctx) == ErrLeaseLost {
			err = lostError{err}
		}
		ended(d.conclude(c, h, begun, err), attempts, err)
	}()
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.Timeout)
		defer cancel()
	}
	d.logger.Debug("handling message", c.fields())
	for again := true; again; {
		attempts++
		if h.Detached {
			err = d.call(ctx, c, h)
		} else {
			begun = true // in case the handler never returns
			begun, err = d.inTx(ctx, c, h, func(unfinished error) { err = fmt.Errorf("%w: %w", errGoexit, unfinished) })
		}
		again = attempts <= maxRepeats && !h.Detached && repeatable(err) && ctx.Err() == nil
	}
}

// inTx acks the message, which keeps it from others until the transaction ends, and calls the handler. If the handler
// never returns, unfinished gets the state in which it left the transaction. begun is false if there was no transaction
// or no reply in it: then the handler was not called, and the message is not at fault.
func (d *Dispatcher) inTx(ctx context.Context, c *claimed, h Handler, unfinished func(error)) (begun bool, err error) {
	opts := core.TxOptions(d.cfg.Tx)
	opts.OnBegin = nil
	err = core.InTx(ctx, d.store.db, opts, func(ctx context.Context) error {
		core.OnUnfinished(ctx, unfinished)
		switch ours, err := c.Ack(ctx); {
		case err != nil:
			return err
		case !ours:
			begun = true
			return ErrLeaseLost
		}
		begun = true
		if begin := d.cfg.Tx.OnBegin; begin != nil {
			if err := guarded(func() error { return begin(ctx) }); err != nil {
				return fmt.Errorf("OnBegin: %w", err)
			}
		}
		if err := d.call(ctx, c, h); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the handler exceeded its Timeout: %w", context.Cause(ctx))
		}
		return nil
	})
	return begun, err
}

func (d *Dispatcher) call(ctx context.Context, c *claimed, h Handler) error {
	return guarded(func() error { return h.Handle(ctx, c.copy()) })
}

// lostError is the error of a handler whose lease was lost meanwhile.
type lostError struct{ handler error }

func (e lostError) Error() string   { return ErrLeaseLost.Error() + ": " + e.handler.Error() }
func (e lostError) Unwrap() []error { return []error{ErrLeaseLost, e.handler} }

// panicError is a panic of user code.
type panicError struct {
	error
	stack string
}

func (e panicError) Unwrap() error { return e.error }

// guarded converts a panic of fn, or of the Error method of its error, into an error.
func guarded(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicError{core.Panicked(p), string(debug.Stack())}
		}
	}()
	return text.SafeError(fn())
}

// repeatable reports whether a transaction failed only because of concurrent ones: a serialization failure or a
// deadlock.
func repeatable(err error) bool {
	later := new(core.RetryAfterError)
	if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || errors.Is(err, outbox.ErrPoison) ||
		errors.Is(err, outbox.ErrAlreadyProcessed) || errors.As(err, &later) {
		return false
	}
	state := text.SQLState(err)
	return state == "40001" || state == "40P01"
}

// conclude writes the outcome of an attempt to the database.
func (d *Dispatcher) conclude(c *claimed, h Handler, begun bool, err error) observe.Outcome {
	if errors.Is(err, outbox.ErrTxEnded) {
		d.unack(c) // first, because the mark keeps the message from being released
	}
	fields := c.fields()
	var panicked panicError
	if errors.As(err, &panicked) {
		fields["stack"] = panicked.stack
	}
	var lost lostError
	switch {
	case err == nil:
		if h.Detached {
			c.ack()
		}
		return observe.Processed
	case errors.Is(err, outbox.ErrRolledBack):
		c.ack()
		return observe.RolledBack
	case errors.As(err, &lost):
		// Cause: the process paused, or the database.
		// Cure: raise LeaseTTL; return when the context ends.
		d.logger.Error("handler failed after its lease was lost: the message is delivered to another", lost.handler, fields)
		return observe.Duplicate
	case errors.Is(err, ErrLeaseLost) && begun:
		d.logger.Info("lease lost before the handler was called: the message is delivered to another", fields)
		return observe.Duplicate
	case context.Cause(c.loop.work) == errStopped:
		// Cause: it took longer than CloseTimeout.
		// Cure: raise it, or shorten handlers.
		d.logger.Error("handler interrupted at the end of CloseTimeout: the message is released, no attempt is counted",
			err, fields)
		c.release(0, "")
		return observe.Failed
	}
	if !begun && refusesRow(err) {
		wait, _ := d.store.refused("ack", queueRow{ID: c.ID, topic: c.Topic}, err)
		c.release(wait, text.OfError(err))
		return observe.Failed
	}
	if !begun {
		// Cause: the pool is full, or the database.
		// Cure: raise pool_max_conns or lower Concurrency.
		d.logger.Error("no transaction for the handler: the message is retried, no attempt is counted", err, fields)
		c.release(c.loop.store.backoff.Delay(1), text.OfError(err))
		return observe.Failed
	}
	if later, wait := d.store.uncharged(err); later {
		return d.postpone(c, err, wait)
	}
	// Cause: it returned an error or panicked.
	// Cure: it is retried until MaxAttempts.
	d.logger.Error("handler failed", err, fields)
	switch decision := d.decide(err); {
	case decision == outbox.Ack:
		c.ack()
		return observe.Duplicate
	case decision == outbox.DeadLetter || c.Last():
		return d.markDead(c, err, true)
	}
	c.abandon(err)
	return observe.Failed
}

// miswiredWait is how long a message waits if its handler is wired wrongly.
const miswiredWait = 30 * time.Second

// uncharged reports whether an error does not count against the message, and how long the message should wait: its
// handler requested a later retry, or the program must be changed.
func (s *Store) uncharged(err error) (_ bool, wait time.Duration) {
	later := new(core.RetryAfterError)
	switch {
	case errors.Is(err, outbox.ErrPoison), errors.Is(err, outbox.ErrAlreadyProcessed):
		return false, 0
	case errors.As(err, &later):
		return true, s.backoff.Later(later.Wait)
	}
	return miswired(err), miswiredWait
}

func miswired(err error) bool {
	return errors.Is(err, outbox.ErrTxKind) || errors.Is(err, outbox.ErrOtherDB)
}

// postpone releases a message without counting an attempt.
func (d *Dispatcher) postpone(c *claimed, err error, wait time.Duration) observe.Outcome {
	fields := c.fields()
	fields["wait"] = wait
	outcome := observe.Postponed
	if miswired(err) {
		outcome = observe.Failed
		if d.store.lines.Allow("miswired " + c.Topic) {
			// Cause: a middleware is missing or misplaced, the handle is wrong, or there is no publish topic.
			// Cure: the error says which.
			d.logger.Error("handler is wired wrongly: its messages are retried, no attempt is counted: fix the program",
				err, fields)
		}
	} else {
		fields["err"] = text.OfError(err)
		d.logger.Info("handler requested a later retry", fields)
	}
	c.release(wait, text.OfError(err))
	return outcome
}

// unack reverts the ack that the handler committed when it ended the transaction.
func (d *Dispatcher) unack(c *claimed) {
	ctx, cancel := context.WithTimeout(c.loop.base, queryTimeout)
	defer cancel()
	if err := c.Unack(ctx); err != nil {
		// Cause: the handler committed, then failed.
		// Cure: leave COMMIT to the middleware; check the effects: the message counts as handled.
		d.logger.Error("handler ended its transaction: the ack could not be undone", err, c.fields())
	}
}

func (d *Dispatcher) decide(err error) (decision outbox.Decision) {
	switch {
	case errors.Is(err, outbox.ErrPoison):
		return outbox.DeadLetter
	case errors.Is(err, outbox.ErrAlreadyProcessed):
		return outbox.Ack
	}
	if failed := guarded(func() error { decision = d.cfg.Classify(err); return nil }); failed != nil {
		// Cause: a bug of DispatcherConfig.Classify.
		// Cure: as for Nack.
		d.logger.Error("panic in Classify: the message is retried", failed, nil)
		return outbox.Nack
	}
	return decision
}

// toMessage converts a stored message to a Watermill message.
func toMessage(m *Message) *message.Message {
	msg := message.NewMessage(m.MessageID, m.Payload)
	for k, v := range m.Metadata {
		msg.Metadata[k] = v
	}
	core.SetKey(msg, m.Key)
	return msg
}
