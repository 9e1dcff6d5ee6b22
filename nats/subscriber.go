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

// Subscriber reads subjects of JetStream by key. It is safe for concurrent use.
type Subscriber struct {
	cfg    SubscriberConfig
	logger watermill.LoggerAdapter

	topics *inbound.Topics
}

var _ message.Subscriber = (*Subscriber)(nil)

// NewSubscriber returns a Subscriber. It does no I/O. It returns an error that names every invalid field. A nil logger
// logs nothing.
func NewSubscriber(cfg SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg.setDefaults()
	backoff, err := core.Backoff(cfg.Backoff).Precomputed("nats: SubscriberConfig.Backoff")
	if err = errors.Join(cfg.validate(), err); err != nil {
		return nil, err
	}
	cfg.Backoff = outbox.Backoff(backoff)
	logger = core.RedactingLogger(logger)
	return &Subscriber{cfg: cfg, logger: logger, topics: inbound.NewTopics("nats", "Consumer")}, nil
}

// Subscribe delivers the messages of a topic until ctx ends or Close is called. Then the contexts of its messages end,
// and the channel is closed when they are acked, or after CloseTimeout.
//
// The topic is a subject. It may have wildcards if one stream has all the subjects that match. Subscribe connects in
// the background: while NATS is down, or if no stream or several have the topic, it logs errors and does not fail. It
// returns outbox.ErrClosed after Close, and an error if the topic already has a subscription, because another would
// only be a standby.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	var messages <-chan *message.Message
	err := s.topics.Start(ctx, topic, func(ctx context.Context) (func(), error) {
		sub := newSubscription(ctx, &s.cfg, topic, s.logger)
		messages = sub.deliverer.Messages()
		return sub.run, nil
	})
	return messages, err
}

// Close ends all subscriptions, waits for the server to confirm the acks, and returns the other messages to the server.
// If NATS does not respond, that takes six seconds longer than CloseTimeout, and five more if observers hang. It may be
// called several times.
func (s *Subscriber) Close() error {
	s.topics.Close()
	return nil
}
