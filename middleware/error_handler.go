package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
	"github.com/millrace-go/watermill-outbox/observe"
)

// bookkeepingTimeout bounds the writes of ErrorHandler after an attempt, whose context may have ended.
const bookkeepingTimeout = 10 * time.Second

// ErrorHandlerConfig configures ErrorHandler. Service is required.
type ErrorHandlerConfig struct {
	// Service names the service in dead letters. Required.
	Service string
	// DeadLetterTopic is where dead letters are published, through the outbox; default "dead_letters".
	DeadLetterTopic string
	// Classify returns outbox.DeadLetter, outbox.Ack or outbox.Nack for errors that wrap neither outbox.ErrPoison nor
	// outbox.ErrAlreadyProcessed; default: Nack.
	Classify func(err error) outbox.Decision
	// MaxAttempts is the number of failed attempts after which a message is dead; default 10, -1 unlimited. Lower it and
	// MinDeadAge if a failing message blocks its partition. Without Inbox there is no limit. For queue.Subscriber
	// StoreConfig.MaxAttempts applies, for forwarder.Subscriber SubscriberConfig.Forwarder.MaxAttempts and MinDeadAge.
	MaxAttempts int
	// MinDeadAge is the minimum time between a message's first failure and its death; default 1 h, -1 none.
	MinDeadAge time.Duration
	// Backoff is the wait before a nack; default 100 ms doubling to 10 s. The message keeps its slot: keep Max below
	// the broker's ack deadline. Messages of this module's subscribers are nacked immediately, as their own Backoff
	// applies.
	Backoff outbox.Backoff
}

func (c *ErrorHandlerConfig) setDefaults() {
	if c.DeadLetterTopic == "" {
		c.DeadLetterTopic = "dead_letters"
	}
	if c.Classify == nil {
		c.Classify = func(error) outbox.Decision { return outbox.Nack }
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 10
	}
	if c.MinDeadAge == 0 {
		c.MinDeadAge = time.Hour
	}
	c.Backoff = outbox.Backoff(core.Backoff(c.Backoff).WithDefaults(100*time.Millisecond, 10*time.Second))
}

func (c ErrorHandlerConfig) validate() error {
	if err := checkService("ErrorHandlerConfig.Service", c.Service); err != nil {
		return err
	}
	switch {
	case len(c.DeadLetterTopic) > core.MaxTopicBytes || !text.Storable(c.DeadLetterTopic):
		return fmt.Errorf("ErrorHandlerConfig.DeadLetterTopic must be UTF-8 without NUL, of at most %d bytes",
			core.MaxTopicBytes)
	case c.MaxAttempts < -1:
		return fmt.Errorf("ErrorHandlerConfig.MaxAttempts is %d: use -1 for no limit", c.MaxAttempts)
	case c.MinDeadAge < -1:
		return fmt.Errorf("ErrorHandlerConfig.MinDeadAge is %s: use -1 for none", c.MinDeadAge)
	}
	return core.Backoff(c.Backoff).Validate("ErrorHandlerConfig.Backoff")
}

// ErrorHandler acks, nacks or dead-letters a message whose handler returned an error, after the rollback. Put it
// outside Tx.
//
//   - outbox.ErrAlreadyProcessed, or outbox.Ack of Classify: recorded as processed in the inbox, and acked.
//   - outbox.ErrPoison, outbox.DeadLetter of Classify, or too many attempts: marked dead in the inbox and published to
//     the dead-letter topic through the outbox, in one new transaction, then acked.
//   - outbox.RetryAfter: nacked after the wait, or after ErrorHandlerConfig.Backoff.Max if that is less; no attempt is
//     counted. An earlier redelivery to this process waits, and the handler is not called.
//   - A wiring mistake (a middleware missing or misplaced, no publish topic, outbox.ErrTxKind, outbox.ErrOtherDB):
//     nacked after a growing wait; no attempt is counted, and an error line once a minute names the cure.
//   - Any other error: the attempt and the error are recorded in the inbox, and the message is nacked after
//     ErrorHandlerConfig.Backoff. Messages of our own subscribers are nacked immediately, because those have a backoff.
//
// If a dead letter cannot be written, the message is nacked, with the reason in the inbox. If a duplicate was processed
// meanwhile or is dead, the message is acked as a duplicate. A message from the dead-letter topic itself gets no dead
// letter: it is nacked, with an error line each time, until its handler is fixed. Messages of queue.Subscriber and
// forwarder.Subscriber are marked dead in their own table. If a handler ended its transaction (outbox.ErrTxEnded) and
// committed the inbox row, the row is removed first, so that the redelivery is not skipped.
//
// Failures are recorded under the key and consumer of Inbox. If TxConfig.OnBegin fails in a Stack, the failure is
// recorded under the same key. If InboxConfig.Key or OnMismatch fails, this process counts the failures in memory.
// Without Inbox nothing is recorded, but the wait grows, and poison messages are still dead. A panic counts like any
// other error and is passed on, unless the message is acked; in Classify it counts as outbox.Nack.
//
// A dead letter has the payload and metadata of its message, the metadata constants of this package, and a UUID derived
// from the message, its generation, its consumer and how often it was revived. Metadata keys that could command a
// broker get the suffix "_poisoned". If the metadata leaves too little room, the entries that the dead letter adds are
// cut. Error texts are stored up to 1 KiB, so keep secrets out of errors.
//
// Each dead message is logged as an error, each failed attempt at debug level. If logger is nil, the logger of db is
// used. The constructor returns outbox.ErrNoDB or an error that names an invalid field.
func ErrorHandler(
	db *outbox.DB, cfg ErrorHandlerConfig, logger watermill.LoggerAdapter,
) (message.HandlerMiddleware, error) {
	o, err := newErrorHandler(db, cfg, logger)
	if err != nil {
		return nil, err
	}
	return around("ErrorHandler", o.handle), nil
}

func newErrorHandler(db *outbox.DB, cfg ErrorHandlerConfig, logger watermill.LoggerAdapter) (*errorHandler, error) {
	cfg.setDefaults()
	deadLetters, err := outbox.NewPublisher(db, outbox.PublisherConfig{Key: deadLetterKey}, logger)
	if err = errors.Join(err, cfg.validate()); err != nil {
		return nil, err
	}
	return &errorHandler{
		db: (*core.DB)(db), cfg: cfg, deadLetters: (*core.Publisher)(deadLetters), logger: (*core.DB)(db).Logger(logger),
	}, nil
}

type errorHandler struct {
	db          *core.DB
	cfg         ErrorHandlerConfig
	deadLetters *core.Publisher
	logger      watermill.LoggerAdapter
	recall      recall
	lines       trouble.RateLimit // about handlers

	// identify returns the claim that the Inbox of the same Stack would make for the message; nil without a Stack.
	identify func(ctx context.Context, msg *message.Message) (*claim, error)
}

func (o *errorHandler) handle(next message.HandlerFunc, msg *message.Message) (produced []*message.Message, err error) {
	if err := o.tooEarly(msg); err != nil {
		return nil, err
	}
	outside := msg.Context()
	ctx, h, outermost := handlingOf(msg)
	if !outermost {
		return nil, &wiringError{
			text: "middleware.ErrorHandler is inside middleware.Tx or another ErrorHandler: add it once, before Tx, since " +
				"Router.AddMiddleware makes the first the outermost, or use middleware.Stack in its order",
		}
	}
	ctx = core.MarkThrottled(started(ctx, o.db, o.cfg.Service, msg, time.Time{}))
	msg.SetContext(ctx)
	finished := false
	defer func() {
		cause, outcome, wait := err, observe.Failed, time.Duration(0)
		if !finished {
			cause = h.panicked()
		}
		if outcome, wait, err = o.conclude(ctx, msg, h, cause); outcome != observe.Processed {
			produced = nil
		}
		if err == nil && !finished {
			if p := recover(); p != nil { // otherwise the message would be nacked
				o.logPanic(ctx, msg, p)
			}
		}
		h.ended.Store(true)
		msg.SetContext(outside)
		ended(ctx, o.db, o.cfg.Service, msg, h, outcome, cause)
		core.Pause(outside, wait)
	}()
	produced, err = next(msg)
	err = text.SafeError(err)
	finished = true
	return produced, err
}

// tooEarly waits with a message whose handler requested a later retry, and returns the reason if the time has not come
// even then: the message must be nacked.
func (o *errorHandler) tooEarly(msg *message.Message) error {
	if !o.recall.some.Load() {
		return nil
	}
	ctx := msg.Context()
	key := keyOf(message.HandlerNameFromCtx(ctx), msg)
	wait, err := o.recall.early(key)
	core.Pause(ctx, min(wait, o.cfg.Backoff.Max))
	if wait, _ = o.recall.early(key); wait > 0 {
		return err
	}
	return nil
}

// conclude settles the outcome and returns the result for the Router: nil to ack, or an error to nack after the wait.
func (o *errorHandler) conclude(
	ctx context.Context, msg *message.Message, h *handling, err error,
) (observe.Outcome, time.Duration, error) {
	if err == nil {
		o.forget(ctx, msg)
		return h.outcome(nil), 0, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookkeepingTimeout)
	defer cancel()
	if errors.Is(err, outbox.ErrTxEnded) {
		o.takeBack(ctx, msg, h)
	}
	if uncharged(err) {
		return o.retryLater(ctx, msg, h, err)
	}
	failed, n := o.count(ctx, msg, h)
	if failed == onBegin && h.duplicate {
		o.forget(ctx, msg)
		return observe.Duplicate, 0, nil
	}
	decision := o.decide(h, n, err)
	if decision == outbox.DeadLetter && h.work == nil && o.isDeadLetter(ctx) {
		decision = outbox.Nack
		// Cause: the handler of the dead-letter topic failed.
		// Cure: the dead letter is redelivered.
		o.logger.Error("handling a dead letter failed: no dead letter is written for it, and it is nacked: fix its "+
			"handler",
			err, fieldsOf(ctx, msg))
	}
	switch decision {
	case outbox.DeadLetter:
		marked, writeErr := o.sendDeadLetter(ctx, msg, h, err)
		if writeErr != nil {
			writeErr = fmt.Errorf("%w: %w", core.ErrNoDeadLetter, text.Explain(writeErr))
			h.setFailure(0, writeErr)
			o.record(ctx, msg, h.claim, sqltext.FailInbox, text.OfError(fmt.Errorf("%w: %w", writeErr, err)))
			return observe.Failed, o.wait(h, n), errors.Join(err, writeErr)
		}
		o.forget(ctx, msg)
		if !marked {
			return observe.Duplicate, 0, nil
		}
		if o.isDeadLetter(ctx) {
			// Cause: a handler of the dead-letter topic failed too often.
			// Cure: see outboxctl inbox list --state dead.
			o.logger.Error("dead letter died: no dead letter is written for it", err, fieldsOf(ctx, msg))
		} else {
			// Cause: MaxAttempts and MinDeadAge are reached, or the handler returned Poison.
			// Cure: fix the handler; then outboxctl inbox redrive.
			o.logger.Error("message died: dead letter written", err, fieldsOf(ctx, msg).Add(watermill.LogFields{
				"dead_letter_topic": o.cfg.DeadLetterTopic,
			}))
		}
		return observe.Dead, 0, nil
	case outbox.Ack:
		o.record(ctx, msg, h.claim, sqltext.ClaimInbox, nil)
		o.forget(ctx, msg)
		return observe.Duplicate, 0, nil
	}
	o.record(ctx, msg, h.claim, sqltext.FailInbox, text.OfError(err))
	h.setFailure(0, err)
	wait := o.wait(h, n)
	fields := fieldsOf(ctx, msg).Add(watermill.LogFields{"failures": n.failures, "wait": wait})
	if failed != noCallback && o.lines.Allow("not called "+message.HandlerNameFromCtx(ctx)) {
		o.logNotCalled(failed, err, fields)
	} else {
		o.logger.Debug("handler failed: the message is nacked", fields.Add(watermill.LogFields{"err": text.OfError(err)}))
	}
	return observe.Failed, wait, err
}

// wait returns zero for a message of our own Subscribers, which wait themselves and give its slot to others meanwhile.
func (o *errorHandler) wait(h *handling, n tally) time.Duration {
	if h.work != nil || h.later != nil {
		return 0
	}
	return core.Backoff(o.cfg.Backoff).Delay(n.failures)
}

// takeBack removes the inbox row that the handler committed when it ended the transaction.
func (o *errorHandler) takeBack(ctx context.Context, msg *message.Message, h *handling) {
	switch {
	case h.acked:
		if err := h.work.Unack(ctx); err != nil {
			// Cause: the handler committed, then failed.
			// Cure: leave COMMIT to the middleware; check the effects: the message counts as handled.
			o.logger.Error("handler ended its transaction: the ack could not be undone", err, fieldsOf(ctx, msg))
		}
	case h.claim != nil:
		o.record(ctx, msg, h.claim, sqltext.UnclaimInbox, h.claim.token)
	}
}

// record writes to the inbox row. If that fails, only the record is missing; the message's outcome stays the same.
func (o *errorHandler) record(ctx context.Context, msg *message.Message, c *claim, statement string, arg any) {
	if c == nil {
		return
	}
	if _, err := o.db.Exec(ctx, o.db.Render(statement), c.consumer, c.key, arg); err != nil {
		// Cause: the database.
		// Cure: the message is redelivered, the attempt not counted.
		o.logger.Error("could not record the outcome in the inbox", err, fieldsOf(ctx, msg))
	}
}
