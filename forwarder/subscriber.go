package forwarder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Subscriber delivers committed messages of the outbox as a message.Subscriber, so that a Router and its middlewares
// can stand between the outbox and a broker. An ack marks the message published. A nack counts as a failed attempt,
// with backoff, blocked key and death as in SubscriberConfig; behind middleware.Stack an attempt without a connection
// is not counted. The next message of a key is delivered after the ack of the previous one.
//
// Instead of the last nack, middleware.ErrorHandler writes a dead letter and acks. While it cannot be written,
// the message is delivered again after a minute, without counting an attempt. Without ErrorHandler the message is dead.
//
// Subscribers of a topic share its messages. Each subscription has a forwarder's connections: one for its lease, and
// with FromPgx one to read and one to listen. It is safe for concurrent use.
type Subscriber struct {
	db     *outbox.DB
	cfg    Config
	logger watermill.LoggerAdapter

	ctx     context.Context // ends with Close
	close   context.CancelFunc
	mu      sync.Mutex // makes Subscribe and Close exclude each other
	running sync.WaitGroup
}

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber makes a Subscriber. Each subscribed topic is its own scope. It does no I/O. It returns outbox.ErrNoDB
// or an error that names every invalid field. A nil logger logs nothing.
func NewSubscriber(db *outbox.DB, cfg SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	engineCfg, err := cfg.config()
	if err = errors.Join((*core.DB)(db).Check(), err); err != nil {
		return nil, err
	}
	s := &Subscriber{db: db, cfg: engineCfg, logger: logger}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s, nil
}

// Subscribe delivers the messages of a topic until ctx ends or Close is called; then the channel is closed and the
// contexts of its messages end. While a Forwarder reads the topic, it waits and delivers nothing. It returns
// outbox.ErrClosed, schema.ErrSchemaChanged, or an error of the database.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic == "" {
		return nil, errors.New("forwarder: the topic is empty")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, outbox.ErrClosed
	}
	cfg := s.cfg
	cfg.Topics = []string{topic}
	cfg.Scope = "subscriber:" + topic // a Forwarder of the topic must not share it
	messages := make(chan *message.Message)
	ctx, cancel := context.WithCancel(ctx)
	d := delivery{ctx: ctx, messages: messages}
	e, err := newEngine(ctx, s.db, cfg, d.send, nil, s.logger)
	if err != nil {
		cancel()
		return nil, err
	}
	stopReports := e.reports.start(cfg.CloseTimeout)
	if err := e.prepare(ctx); err != nil {
		stopReports()
		cancel()
		return nil, err
	}
	stop := context.AfterFunc(s.ctx, cancel)
	s.running.Go(func() {
		defer close(messages)
		defer stopReports()
		defer cancel()
		defer stop()
		if err := e.run(ctx); err != nil {
			// Cause: reading failed for good.
			// Cure: subscribe again.
			e.logger.Error("subscription ended", err, nil)
		}
	})
	return messages, nil
}

// Close ends all subscriptions and waits for them. It may be called several times.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// delivery sends messages to a channel.
type delivery struct {
	ctx      context.Context // of the subscription
	messages chan<- *message.Message
}

// errNotDelivered means that no handler received the message before the subscription ended.
// Cause: the subscription ended first.
// Cure: none is needed.
var errNotDelivered = errors.New("forwarder: message not delivered")

func (d delivery) send(call *callContext, row core.Delivery, msg *message.Message) error {
	msgCtx, cancel := context.WithCancel(msg.Context())
	defer cancel()
	stop := context.AfterFunc(d.ctx, cancel) // the message's context ends with the subscription's
	defer stop()
	var failed atomic.Pointer[nacked]
	failed.Store(nackedBecause(0, outbox.ErrNacked))
	msg.SetContext(core.WithOwnBackoff(core.WithDelivery(msgCtx, msg, row), msg,
		func(wait time.Duration, cause error) { failed.Store(nackedBecause(wait, cause)) }))
	select { // a recalled message is not delivered, even if the handler is ready
	case <-call.recalled():
		return errNotDelivered
	default:
	}
	select {
	case d.messages <- msg:
	case <-call.recalled():
		return errNotDelivered
	case <-d.ctx.Done():
		return errNotDelivered
	case <-call.Done():
		return errNotDelivered
	}
	select {
	case <-msg.Acked():
		return nil
	case <-msg.Nacked():
		return failed.Load()
	case <-call.Done():
		return errNotDelivered
	}
}

// nacked is the error of a message whose handler has nacked it.
type nacked struct {
	error
	wait   time.Duration // that the handler requested; else 0
	snooze bool          // the attempt does not count
}

func (n *nacked) Unwrap() error { return n.error }

// deadLetterRetry is the wait of a message whose dead letter could not be written.
const deadLetterRetry = time.Minute

// nackedBecause returns the error of a nack with a cause and the wait that the handler requested. Like an attempt with
// a requested wait, one without a transaction or without a dead letter does not count.
func nackedBecause(wait time.Duration, cause error) *nacked {
	if errors.Is(cause, core.ErrNoDeadLetter) {
		wait = deadLetterRetry
	}
	return &nacked{cause, wait, wait > 0 || errors.Is(cause, core.ErrNotBegun)}
}

// SubscriberConfig configures a Subscriber. The zero value is ready for use.
type SubscriberConfig struct {
	// AckTimeout bounds a delivery; then its context ends and the attempt has failed. Default -1, no limit.
	AckTimeout time.Duration
	// Forwarder configures reading and retries, as of a Forwarder. Concurrency is the number of delivered messages
	// without an ack. CloseTimeout is how long the end of a subscription waits for acks; default 5 s. Backoff is the wait
	// after a nack. MaxAttempts and MinDeadAge apply instead of those of middleware.ErrorHandlerConfig. InboxRetention
	// defaults to -1, since a Forwarder cleans the inbox: set it if no Forwarder runs on the tables, or the inbox grows
	// without limit. Topics, Scope, Routes, PublishTimeout, Classify and OutageBackoff must be empty.
	Forwarder Config
}

// config returns the engine's configuration, with its defaults.
func (c SubscriberConfig) config() (Config, error) {
	cfg := c.Forwarder
	var errs []error
	for field, set := range map[string]bool{
		"Topics": cfg.Topics != nil, "Scope": cfg.Scope != "", "Routes": cfg.Routes != nil,
		"PublishTimeout": cfg.PublishTimeout != 0, "Classify": cfg.Classify != nil,
		"OutageBackoff": cfg.OutageBackoff.Initial+cfg.OutageBackoff.Max != 0 || cfg.OutageBackoff.Func != nil,
	} {
		if set {
			errs = append(errs, fmt.Errorf("SubscriberConfig.Forwarder.%s must be empty: a Subscriber does not publish", field))
		}
	}
	cfg.PublishTimeout = c.AckTimeout
	fill(&cfg.PublishTimeout, -1)
	fill(&cfg.CloseTimeout, 5*time.Second)
	fill(&cfg.InboxRetention, -1)
	cfg.setDefaults()
	if c.AckTimeout < -1 {
		errs = append(errs, fmt.Errorf("SubscriberConfig.AckTimeout is %s: use -1 to wait forever", c.AckTimeout))
		cfg.PublishTimeout = -1
	}
	return cfg, errors.Join(append(errs, cfg.validate("SubscriberConfig.Forwarder"))...)
}
