package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Subscriber reads subjects of JetStream, as the package comment explains. It is safe for concurrent use.
type Subscriber struct {
	cfg    SubscriberConfig
	logger watermill.LoggerAdapter

	ctx     context.Context // ends with Close
	close   context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // also makes Subscribe and Close exclude each other
	topics map[string]*subscription
}

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber makes a Subscriber. It does no I/O. It returns an error that names every field of the config at fault.
// A nil logger logs nothing.
func NewSubscriber(cfg SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg.setDefaults()
	backoff, err := core.Backoff(cfg.Backoff).Asked("nats: SubscriberConfig.Backoff")
	if err = errors.Join(cfg.validate(), err); err != nil {
		return nil, err
	}
	cfg.Backoff = outbox.Backoff(backoff)
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	s := &Subscriber{cfg: cfg, logger: logger, topics: map[string]*subscription{}}
	s.ctx, s.close = context.WithCancel(context.Background())
	return s, nil
}

// Subscribe delivers the messages of a topic, which is a subject of a stream and may have wildcards, until ctx is over
// or Close is called; then the contexts of its messages end, and when they are acked, or CloseTimeout is over, the
// channel is closed. It connects in the background and does not fail while NATS is down: error lines tell of that. It
// returns outbox.ErrClosed after Close, and an error while there is another subscription of the topic, which would be
// no more than a standby of this one.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic == "" {
		return nil, errors.New("nats: the topic is empty")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, outbox.ErrClosed
	}
	if other := s.topics[topic]; other != nil && other.ctx.Err() == nil {
		return nil, fmt.Errorf("nats: topic %q is subscribed already: "+
			"to handle more at once raise SubscriberConfig.Concurrency, "+
			"and for another handler make another Subscriber with a Consumer of its own", topic)
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	sub := newSubscription(ctx, &s.cfg, topic, s.logger)
	s.topics[topic] = sub
	s.running.Go(func() {
		defer cancel()
		defer stop()
		sub.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.topics[topic] == sub {
			delete(s.topics, topic)
		}
	})
	return sub.messages, nil
}

// Close ends all subscriptions, has the server confirm what was acked, and hands back the rest. It waits for that, at
// most a little longer than CloseTimeout. It may be called several times.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.running.Wait()
	return nil
}
