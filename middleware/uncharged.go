package middleware

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/observe"
)

const (
	// minWait is the shortest wait after an attempt that does not count.
	minWait = 100 * time.Millisecond
	// miswiredWait is how long a message of our own subscribers waits if its handler is miswired and there is no
	// ErrorHandler.
	miswiredWait = 10 * time.Second
)

// uncharged reports whether an error does not count against the message: its handler requested a later retry, or the
// program must be changed.
func uncharged(err error) bool {
	switch {
	case errors.Is(err, outbox.ErrPoison), errors.Is(err, outbox.ErrAlreadyProcessed):
		return false
	}
	var later *core.RetryAfterError
	return errors.As(err, &later) || miswired(err)
}

// retryLater nacks without counting an attempt.
func (o *errorHandler) retryLater(
	ctx context.Context, msg *message.Message, h *handling, err error,
) (observe.Outcome, time.Duration, error) {
	outcome, wait := observe.Postponed, time.Duration(0)
	var later *core.RetryAfterError
	if miswired(err) {
		outcome, wait = observe.Failed, o.logMiswired(ctx, msg, err)
	} else {
		errors.As(err, &later)
		wait = core.Backoff(o.cfg.Backoff).Later(later.Wait)
		o.logger.Debug("handler requested a later retry", fieldsOf(ctx, msg).Add(watermill.LogFields{
			"err": text.OfError(later.Err), "wait": wait,
		}))
	}
	switch {
	case h.work != nil || h.later != nil:
		h.setFailure(wait, err)
		return outcome, 0, err
	case later != nil && wait > o.cfg.Backoff.Max:
		o.recall.postpone(keyOf(message.HandlerNameFromCtx(ctx), msg), wait, err)
	}
	return outcome, min(wait, o.cfg.Backoff.Max), err
}

// waitWithoutErrorHandler returns the wait after an attempt, or 0 if the attempt counts.
func waitWithoutErrorHandler(err error) time.Duration {
	later := new(core.RetryAfterError)
	switch {
	case !uncharged(err):
		return 0
	case errors.As(err, &later):
		return max(later.Wait, minWait)
	}
	return miswiredWait
}

// asLater converts err for core.Work, which supports later retries.
func asLater(err error, wait time.Duration) error {
	if later := new(core.RetryAfterError); uncharged(err) && !errors.As(err, &later) {
		return outbox.RetryAfter(err, wait)
	}
	return err
}

// logMiswired logs the advice, at most once a minute, and returns how long to wait: longer with each such failure of
// the handler.
func (o *errorHandler) logMiswired(ctx context.Context, msg *message.Message, err error) time.Duration {
	name := message.HandlerNameFromCtx(ctx)
	failures := o.recall.failed(keyOf(name, message.NewMessage("", nil)))
	backoff := core.Backoff(o.cfg.Backoff)
	if backoff.Func == nil && backoff.Initial <= 0 {
		backoff.Initial = minWait
	}
	wait := cmp.Or(backoff.Delay(failures), minWait)
	if o.lines.Allow("miswired " + name) {
		// Cause: a middleware is missing or misplaced, the handle is wrong, or there is no publish topic.
		// Cure: the error says which.
		o.logger.Error("handler is wired wrongly: its messages are retried, no attempt is counted: fix the program",
			err, fieldsOf(ctx, msg).Add(watermill.LogFields{"wait": wait}))
	}
	return wait
}

func (o *errorHandler) logNotCalled(failed callback, err error, fields watermill.LogFields) {
	// Cause: the function that the line names returned an error, or panicked.
	// Cure: fix the cause that the error names.
	switch failed {
	case onBegin:
		o.logger.Error("handler not called: TxConfig.OnBegin failed: the message is retried after a growing wait",
			err, fields)
	case onMismatch:
		o.logger.Error("handler not called: InboxConfig.OnMismatch failed: the message is retried after a growing wait",
			err, fields)
	default:
		o.logger.Error("handler not called: InboxConfig.Key failed: the message is retried after a growing wait", err, fields)
	}
}

// tally counts the failures of a message, including the current one.
type tally struct {
	failures   int // for the backoff
	charged    int // that count against the message; an outage of the database does not
	chargedFor time.Duration
}

// count returns how often a message has failed, and which callback failed if the handler was not called. A failed
// callback is recorded in the inbox like any other failure if the message can be identified; otherwise, or if its key
// belongs to another message, this process counts.
func (o *errorHandler) count(ctx context.Context, msg *message.Message, h *handling) (failed callback, n tally) {
	if h.calling == onMismatch {
		h.claim = nil
	}
	n.failures = 1
	if h.claim == nil && h.work == nil && h.delivery == nil {
		failed = h.calling
		inMemory := failed == inboxKey || failed == onMismatch
		if failed == onBegin && o.identify != nil {
			var identified bool
			h.claim, identified = o.identified(ctx, msg, h)
			inMemory = !identified
		}
		key := keyOf(message.HandlerNameFromCtx(ctx), msg)
		n.failures = o.recall.failed(key)
		if inMemory {
			n.charged, n.chargedFor = o.recall.charge(key)
		}
	}
	if h.claim != nil {
		n.charged, n.chargedFor = h.claim.failures+1, h.claim.failing
		n.failures = max(n.failures, n.charged)
	}
	return failed, n
}

// identified returns the inbox row that the message has or would get, or nil if Key or the database fails, and whether
// Key worked. A message that was already handled is a duplicate.
func (o *errorHandler) identified(
	ctx context.Context, msg *message.Message, h *handling,
) (c *claim, keyed bool) {
	defer func() {
		if p := recover(); p != nil {
			c, keyed = nil, false
		}
	}()
	asked := msg.Copy()
	asked.SetContext(ctx)
	c, err := o.identify(ctx, asked)
	if err != nil {
		return nil, false
	}
	err = drive.Collect(ctx, o.db, func(rows drive.Rows) error {
		var seconds float64
		err := rows.Scan(&c.failures, &seconds, &h.duplicate)
		c.failing = time.Duration(seconds * float64(time.Second))
		return err
	}, o.db.Render(sqltext.InboxFailures), c.consumer, c.key, c.hash)
	if err != nil {
		// Cause: the database.
		// Cure: the message is redelivered.
		o.logger.Error("could not read the failure count of a message from the inbox", err, fieldsOf(ctx, msg))
		return nil, true
	}
	return c, true
}

// forget removes a message that was handled or is dead.
func (o *errorHandler) forget(ctx context.Context, msg *message.Message) {
	if o.recall.some.Load() {
		o.recall.forget(keyOf(message.HandlerNameFromCtx(ctx), msg))
	}
}
