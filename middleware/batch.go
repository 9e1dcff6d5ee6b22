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
)

// BatchConfig configures Batch. Service is required.
type BatchConfig struct {
	// Service, ErrorHandler, Tx and Inbox are as in StackConfig, but TxConfig.OnBegin and JoinContext cannot be set,
	// because they apply to a single message. The deadlines of messages do not limit a batch, nor a message of it that
	// then goes alone.
	Service      string
	ErrorHandler ErrorHandlerConfig
	Tx           TxConfig
	Inbox        InboxConfig

	// MaxMessages and MaxBytes (of payloads) limit one call; default 1000 and 4 MiB.
	MaxMessages int
	MaxBytes    int
	// MaxWait is how long a call waits for more messages; default 0: a call gets the messages that arrived during the
	// previous one. A longer wait saves commits where messages are rare, and delays each message.
	MaxWait time.Duration
}

func (c *BatchConfig) setDefaults() {
	for _, service := range []*string{&c.ErrorHandler.Service, &c.Inbox.Service} {
		if *service == "" {
			*service = c.Service
		}
	}
	c.Tx.setDefaults()
	if c.MaxMessages == 0 {
		c.MaxMessages = 1000
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 4 << 20
	}
}

func (c BatchConfig) validate() error {
	switch {
	case c.Tx.OnBegin != nil || c.Tx.JoinContext:
		return errors.New("BatchConfig.Tx: OnBegin and JoinContext are for one message, not for a batch")
	case c.MaxMessages < 0 || c.MaxBytes < 0 || c.MaxWait < 0:
		return errors.New("BatchConfig.MaxMessages, MaxBytes and MaxWait must not be negative")
	}
	return checkService("BatchConfig.Service", c.Service)
}

// Batch returns a handler that gathers the messages that a Router delivers concurrently and calls fn with many of them,
// in one transaction that also has their inbox rows and the messages that fn publishes. Then the Router acks them:
//
//	project, err := middleware.Batch(db, middleware.BatchConfig{Service: "reports"}, insertOrders, logger)
//	router.AddConsumerHandler("orders-report", "orders", sub, project)
//
// ctx and the contexts of the messages carry the transaction. The messages are copies, none of them was handled before,
// and they are in no particular order.
//
// It has its own ErrorHandler, Tx and Inbox: name the handler in StackConfig.Except if the Router has a Stack.
//
// A batch has at most as many messages as the subscriber delivers before it gets acks: Concurrency with
// kafka.Subscriber, nats.Subscriber, queue.Subscriber and forwarder.Subscriber, and one message of each partition with
// watermill-kafka. A key keeps its order: those subscribers deliver one message of a key at a time.
//
// If fn returns an error or panics, the batch is rolled back and its halves are tried separately, and so on. A message
// that fails in a batch of one goes through ErrorHandler, Tx and Inbox on its own and is eventually dead-lettered; the
// others are committed. Messages that failed before, and all messages of a batch that timed out or failed too often, go
// alone immediately. So fn can be called again for a message that did not fail, and for a message alone while another
// batch is in progress. If fn returns outbox.RetryAfter, all messages of the call are retried after that wait. A call
// that uses outbox.SetRollbackOnly is halved in the same way; the message alone is acked, as with Tx.
//
// It returns outbox.ErrNoDB or an error that names the invalid field. If logger is nil, the logger of db is used.
func Batch(
	db *outbox.DB, cfg BatchConfig, fn func(ctx context.Context, msgs []*message.Message) error,
	logger watermill.LoggerAdapter,
) (message.NoPublishHandlerFunc, error) {
	cfg.setDefaults()
	if err := errors.Join((*core.DB)(db).Check(), cfg.validate()); err != nil {
		return nil, err
	}
	if fn == nil {
		return nil, errors.New("middleware.Batch: the function is nil")
	}
	errorHandler, errorHandlerErr := newErrorHandler(db, cfg.ErrorHandler, logger)
	tx, txErr := Tx(db, cfg.Tx, logger)
	inbox, inboxErr := newInbox(db, cfg.Inbox, logger)
	if err := errors.Join(errorHandlerErr, txErr, inboxErr); err != nil {
		return nil, err
	}
	errorHandler.identify = inbox.identify
	b := &batcher{
		db: (*core.DB)(db), cfg: cfg, fn: fn, inbox: inbox, errorHandler: errorHandler, logger: (*core.DB)(db).Logger(logger),
		full: make(chan struct{}, 1),
	}
	b.alone = around("ErrorHandler", errorHandler.handle)(tx(around("Inbox", inbox.handle)(
		func(msg *message.Message) ([]*message.Message, error) {
			if cause, _ := msg.Context().Value(causeKey{}).(error); cause != nil {
				return nil, cause
			}
			return nil, fn(msg.Context(), message.Messages{msg})
		})))
	return b.handle, nil
}

// causeKey is the context key for the error of a batch. Its messages return that error without another call of the
// function.
type causeKey struct{}

// withoutDeadline is the context of a message that goes alone after a batch, which may have outlasted its deadline.
// Only TxConfig.Timeout limits the attempt, so that it begins and is counted.
type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// handle returns when the message is committed, or has failed.
func (b *batcher) handle(msg *message.Message) error {
	outside := msg.Context()
	ctx, h, outermost := handlingOf(msg)
	if !outermost {
		return &wiringError{text: "middleware.Batch is inside middleware.Stack, and has its own: name its handler in " +
			"StackConfig.Except"}
	}
	one := &batched{msg: msg, ctx: ctx, h: h, done: make(chan result, 1), began: time.Now()}
	if one.claim = b.identify(ctx, msg, h); one.claim != nil {
		r, err := b.join(outside, one)
		if err != nil {
			h.setFailure(0, err)
		}
		h.ended.Store(true)
		if err != nil || r == (result{}) {
			return err
		}
		msg.SetContext(context.WithValue(withoutDeadline{outside}, causeKey{}, r.cause))
		defer msg.SetContext(outside)
	}
	_, err := b.alone(msg)
	return err
}

// identify returns nil for a message that must be handled alone: it failed before, waits after RetryAfter, or has no
// key.
func (b *batcher) identify(ctx context.Context, msg *message.Message, h *handling) (c *claim) {
	defer func() {
		if recover() != nil { // it panics again when the message is handled alone
			c = nil
		}
	}()
	if h.work != nil && h.work.Failed() {
		return nil
	}
	if recall := &b.errorHandler.recall; recall.some.Load() {
		if wait, _ := recall.early(keyOf(message.HandlerNameFromCtx(ctx), msg)); wait > 0 {
			return nil
		}
	}
	outside := msg.Context()
	msg.SetContext(ctx)
	defer msg.SetContext(outside)
	c, err := b.inbox.identify(ctx, msg)
	if err != nil {
		return nil
	}
	b.db.Consumes(c.consumer, message.SubscribeTopicFromCtx(ctx))
	return c
}

// panicked returns the error for a batch whose function panicked. The faulty message panics again when it is handled
// alone, and that panic reaches the Router.
func panicked(p any) error { return fmt.Errorf("%w: %w", errPanicked, core.Panicked(p)) }
