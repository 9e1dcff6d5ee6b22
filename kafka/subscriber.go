package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
)

// Subscriber reads topics as a member of a consumer group; the package comment describes how. It is safe for concurrent
// use.
type Subscriber struct {
	cfg    SubscriberConfig
	inner  *wmkafka.Subscriber
	logger watermill.LoggerAdapter

	topics *inbound.Topics
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber returns a Subscriber. It does no I/O. It returns an error that names every invalid field. A nil logger
// logs nothing.
func NewSubscriber(cfg SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg.setDefaults()
	backoff, err := core.Backoff(cfg.Backoff).Precomputed("kafka: SubscriberConfig.Backoff")
	if err = errors.Join(cfg.validate(), err); err != nil {
		return nil, err
	}
	cfg.Backoff = outbox.Backoff(backoff)
	logger = core.RedactingLogger(logger)
	cfg.logUnused(logger)
	inner, err := wmkafka.NewSubscriber(cfg.SubscriberConfig, logger)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &Subscriber{
		cfg: cfg, inner: inner, logger: logger, topics: inbound.NewTopics("kafka", "ConsumerGroup"),
	}, nil
}

// Subscribe delivers the messages of a topic until ctx ends or Close is called; then the contexts of its messages end,
// and the channel is closed when they are acked, or after CloseTimeout. It connects in the background: while Kafka is
// down it logs errors and does not fail. It returns outbox.ErrClosed after Close, and an error if the topic already has
// a subscription: two handlers would share its partitions, and after a rebalance one of them would get messages that
// the other has handled.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	var messages <-chan *message.Message
	err := s.topics.Start(ctx, topic, func(ctx context.Context) (func(), error) {
		settings, err := s.cfg.settings(topic)
		if err != nil {
			return nil, err
		}
		sub := newSubscription(ctx, &s.cfg, settings, topic, s.logger)
		messages = sub.deliverer.Messages()
		return sub.run, nil
	})
	return messages, err
}

// SubscribeInitialize creates the topic with InitializeTopicDetails, as watermill-kafka's subscriber does.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return s.inner.SubscribeInitialize(topic)
}

// Close ends all subscriptions, commits the acked messages, and leaves the group. If Kafka does not respond, it returns
// five seconds after CloseTimeout, and five more if observers hang. It may be called several times.
func (s *Subscriber) Close() error {
	s.topics.Close()
	return s.inner.Close()
}
