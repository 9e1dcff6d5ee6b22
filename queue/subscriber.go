package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// SubscriberConfig configures a Subscriber. Its fields work like those of DispatcherConfig.
type SubscriberConfig struct {
	// Service names the service to observers; default none.
	Service string
	// Concurrency is the number of delivered messages without an ack; default 16.
	Concurrency int
	// MaxBytes bounds their payloads; default 64 MiB.
	MaxBytes int
	// AckTimeout bounds a delivery; then its context ends and the attempt has failed. Default -1, no limit.
	AckTimeout time.Duration
	// CloseTimeout is how long the end of a subscription waits for acks; default 5 s. Then messages are released
	// without counting an attempt.
	CloseTimeout time.Duration

	// LeaseTTL is how long messages of a dead process wait; default 30 s, at least 1 s.
	LeaseTTL time.Duration
	// PollInterval is how often the table is polled when no notification arrives; default 500 ms. It grows tenfold
	// while there is nothing to do.
	PollInterval time.Duration
	// DisableListen polls instead of listening on a connection; default off.
	DisableListen bool
}

func (c *SubscriberConfig) setDefaults() {
	fill(&c.Concurrency, 16)
	fill(&c.MaxBytes, defaultMaxBytes)
	fill(&c.AckTimeout, -1)
	fill(&c.CloseTimeout, 5*time.Second)
	fill(&c.LeaseTTL, 30*time.Second)
	fill(&c.PollInterval, 500*time.Millisecond)
}

func (c SubscriberConfig) validate() error {
	errs := []error{
		positive("SubscriberConfig.Concurrency", c.Concurrency),
		positive("SubscriberConfig.MaxBytes", c.MaxBytes),
		positive("SubscriberConfig.CloseTimeout", c.CloseTimeout),
		positive("SubscriberConfig.PollInterval", c.PollInterval),
		atLeastMinLease("SubscriberConfig.LeaseTTL", c.LeaseTTL),
	}
	if c.AckTimeout < -1 {
		errs = append(errs, fmt.Errorf("SubscriberConfig.AckTimeout is %s: use -1 to wait forever", c.AckTimeout))
	}
	return errors.Join(errs...)
}

// Subscriber delivers stored messages as a message.Subscriber to a Router's handlers. An ack marks the message done.
// After a nack it is retried after StoreConfig.Backoff, up to StoreConfig.MaxAttempts times. Behind middleware.Inbox
// the message is marked done in the handler's transaction; behind middleware.Stack an attempt without a connection is
// not counted. The UUID is the message ID; MessageFromContext has the rest.
//
// Each dead message is logged as an error and reported as observe.Dead. Only middleware.ErrorHandler writes dead
// letters. While it cannot, the message is delivered again after a minute, without counting an attempt.
//
// Subscribers of a topic, in any number of processes, share its messages, without order. Each message is for one
// consumer: a second consumer needs its own messages, with another topic and source. It is safe for concurrent use.
type Subscriber struct {
	store  *Store
	cfg    SubscriberConfig
	logger watermill.LoggerAdapter

	ctx     context.Context // ends with Close
	close   context.CancelFunc
	running sync.WaitGroup

	mu         sync.Mutex // also makes Subscribe and Close exclude each other
	loops      map[*loop]bool
	topics     []string // of all subscriptions so far
	maintained bool     // maintenance and listening have begun
}

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber makes a Subscriber. It does no I/O. It returns outbox.ErrNoDB for a nil store, or an error that names
// every invalid field. If logger is nil, the logger of the handle is used.
func NewSubscriber(store *Store, cfg SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg.setDefaults()
	if store == nil {
		return nil, errors.Join(outbox.ErrNoDB, cfg.validate())
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Subscriber{store: store, cfg: cfg, logger: store.db.Logger(logger), loops: map[*loop]bool{}}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s, nil
}

// Subscribe delivers the messages of a topic until ctx ends or Close is called. Then the contexts of its messages end,
// and the channel is closed when they are acked or CloseTimeout is over. It returns outbox.ErrClosed, or an error of
// the database.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic == "" {
		return nil, errors.New("queue: the topic is empty")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, outbox.ErrClosed
	}
	m := newMaintainer(s.store, s.logger, s.cfg.LeaseTTL, time.Minute, s.cfg.Service, func() []string {
		return []string{topic}
	})
	if err := m.once(ctx); err != nil {
		return nil, err
	}
	if !slices.Contains(s.topics, topic) {
		s.topics = append(s.topics, topic)
	}
	s.maintain(m)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	by := reporter{s.cfg.Service, s.logger}
	sub := &subscription{ctx: ctx, cfg: s.cfg, messages: make(chan *message.Message), by: by}
	l := newLoop(s.store, loopConfig{
		only: []string{topic}, slots: s.cfg.Concurrency, batch: s.cfg.Concurrency, room: s.cfg.MaxBytes,
		lease: s.cfg.LeaseTTL, poll: s.cfg.PollInterval, closeTimeout: s.cfg.CloseTimeout,
	}, s.logger.With(watermill.LogFields{"topic": topic}), sub.deliver)
	s.loops[l] = true
	s.running.Go(func() {
		defer close(sub.messages)
		defer cancel()
		defer stop()
		defer l.begin(ctx)()
		l.run(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.loops, l)
	})
	return sub.messages, nil
}

// maintain starts the work that all subscriptions share. mu must be held.
func (s *Subscriber) maintain(m *maintainer) {
	if s.maintained {
		return
	}
	s.maintained = true
	m.topics = func() []string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Clone(s.topics)
	}
	s.running.Go(func() { m.run(s.ctx) })
	if !s.cfg.DisableListen {
		s.running.Go(func() { listen(s.ctx, s.store, s.logger, s.notified) })
	}
}

// notified handles the notification of a commit in another process.
func (s *Subscriber) notified(n core.Notification) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.loops {
		l.notified(n)
	}
}

// Close ends all subscriptions and waits for them. It may be called several times.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// subscription delivers messages to a channel.
type subscription struct {
	ctx      context.Context
	cfg      SubscriberConfig
	messages chan *message.Message
	by       reporter
}

// MessageFromContext returns the stored message that is being handled, with its source and the number of failed
// attempts, or false if no Subscriber delivered it to this handler.
func MessageFromContext(ctx context.Context) (Message, bool) {
	stored, _ := core.StoredFrom(ctx).(*Message)
	if stored == nil {
		return Message{}, false
	}
	return *stored.copy(), true
}

// Cause: the receiver did neither.
// Cure: raise it, or ack sooner.
var errAckTimeout = errors.New("no ack within SubscriberConfig.AckTimeout")

// deliver returns when the message is settled.
func (s *subscription) deliver(c *claimed) {
	msg := toMessage(c.copy())
	ctx, cancel := context.WithCancel(c.context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)() // the message's context ends with the subscription's
	msg.SetContext(core.WithWork(core.WithStored(ctx, msg, c.Topic, &c.Message), msg, c))
	select {
	case s.messages <- msg:
	case <-ctx.Done():
		c.release(0, "")
		return
	}
	var tooLong <-chan time.Time
	if s.cfg.AckTimeout > 0 {
		timer := time.NewTimer(s.cfg.AckTimeout)
		defer timer.Stop()
		tooLong = timer.C
	}
	select {
	case <-msg.Acked():
		if !c.acked.Load() {
			c.ack()
		}
	case <-msg.Nacked():
		s.nacked(c)
	case <-tooLong:
		s.failed(c, errAckTimeout)
	case <-c.loop.work.Done():
		c.release(0, "")
	}
}

// nacked counts the attempt, unless there was no connection for the handler's transaction, the dead letter could not be
// written, or the handler requested a later retry. It changes nothing if the message is done or has another owner.
func (s *subscription) nacked(c *claimed) {
	err := c.failure()
	switch {
	case c.acked.Load() || errors.Is(err, ErrLeaseLost):
	case errors.Is(err, core.ErrNotBegun):
		c.release(c.loop.store.backoff.Delay(1), text.OfError(err))
	case errors.Is(err, core.ErrNoDeadLetter):
		c.release(onDeadRetryWait, text.OfError(err))
	case err == nil:
		s.failed(c, outbox.ErrNacked)
	default:
		if later, wait := c.loop.store.uncharged(err); later {
			c.release(wait, text.OfError(err))
			return
		}
		s.failed(c, err)
	}
}

// failed counts the attempt, and reports the message as dead if that was the last one.
func (s *subscription) failed(c *claimed, err error) {
	msg := c.Message
	msg.Attempts++
	if n := c.abandon(err); c.Last() && (n > 0 || c.diedOf(err)) {
		c.loop.store.died(c.loop.base, s.by, &msg, err)
	}
}
