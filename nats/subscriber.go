package nats

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
)

// Subscriber reads subjects of JetStream, as the package comment explains. It is safe for concurrent use.
type Subscriber struct {
	cfg    SubscriberConfig
	logger watermill.LoggerAdapter

	topics *inbound.Topics
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
	logger = core.Discreet(logger)
	return &Subscriber{cfg: cfg, logger: logger, topics: inbound.NewTopics("nats", "Consumer")}, nil
}

// Subscribe delivers the messages of a topic, which is a subject of a stream and may have wildcards, until ctx is over
// or Close is called; then the contexts of its messages end, and when they are acked, or CloseTimeout is over, the
// channel is closed. It connects in the background and does not fail while NATS is down: error lines tell of that. It
// returns outbox.ErrClosed after Close, and an error while there is another subscription of the topic, which would be
// no more than a standby of this one.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	var messages <-chan *message.Message
	err := s.topics.Start(ctx, topic, func(ctx context.Context) (func(), error) {
		sub := newSubscription(ctx, &s.cfg, topic, s.logger)
		messages = sub.outlet.Messages()
		return sub.run, nil
	})
	return messages, err
}

// Close ends all subscriptions, has the server confirm what was acked, and hands back the rest. It waits for that,
// where NATS does not answer six seconds longer than CloseTimeout, and five more for observers that hang. It may be
// called several times.
func (s *Subscriber) Close() error {
	s.topics.Close()
	return nil
}
