package kafka

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// errRefused wraps the broker's error for a message that was refused even when sent alone. Classify calls it Permanent.
//
// Cause: see the broker's error.
// Cure: do what it says; then requeue.
var errRefused = errors.New("kafka: message refused by the broker")

// Publisher publishes to Kafka, for consumers with watermill-kafka's subscriber. It is safe for concurrent use,
// including Close.
type Publisher struct {
	inner  message.Publisher
	logger watermill.LoggerAdapter
	topics sync.Map // *turns by topic

	open   sync.RWMutex
	closed bool
}

var _ message.Publisher = (*Publisher)(nil)

// turns lets the calls for a topic run concurrently, or one alone.
type turns struct {
	sync.RWMutex
	warnOnce sync.Once
}

// NewPublisher returns a publisher with the settings that docs/start/kafka.md lists. It connects in the background, so
// that a service starts while Kafka is down; until then Publish returns errors that Classify calls Unavailable. It
// reconnects forever. NewPublisher returns an error that names the field if the configuration is incomplete or unsafe.
// A nil logger logs nothing.
func NewPublisher(cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := cfg.validate("PublisherConfig"); err != nil {
		return nil, err
	}
	settings, err := cfg.sarama()
	if err != nil {
		return nil, err
	}
	return &Publisher{logger: core.RedactingLogger(logger), inner: &producer{
		brokers: cfg.Brokers, settings: settings, marshaler: marshaler{Marshaler: cfg.Marshaler},
	}}, nil
}

// Publish sends the messages one after another and returns when all in-sync replicas have them. It stops at the first
// error, a forwarder.PublishError with the verdict of Classify; the messages before it have been sent. A message may
// have arrived despite an error, except for outbox.ErrClosed after Close, and outbox.ErrInvalidMessage for a nil
// message or one that cannot be converted to a Kafka message.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	p.open.RLock()
	defer p.open.RUnlock()
	if p.closed {
		return judged(outbox.ErrClosed)
	}
	if i := slices.Index(msgs, nil); i >= 0 {
		return judged(fmt.Errorf("%w: message %d of %d is nil", outbox.ErrInvalidMessage, i+1, len(msgs)))
	}

	for _, msg := range msgs {
		if err := p.publish(topic, msg); err != nil {
			return judged(explain(topic, err))
		}
	}
	return nil
}

// judged adds the verdict to an error.
func judged(err error) error { return &forwarder.PublishError{Verdict: Classify(err), Err: err} }

// explain adds the cure if the error is about a topic.
func explain(topic string, err error) error {
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return fmt.Errorf("kafka: topic %q does not exist, and the broker does not create topics: create it and "+
			"all other topics that are published to, including the dead-letter topic: %w", topic, err)
	}
	return err
}

func (p *Publisher) publish(topic string, msg *message.Message) error {
	v, ok := p.topics.Load(topic)
	if !ok {
		v, _ = p.topics.LoadOrStore(topic, new(turns))
	}
	t := v.(*turns)

	t.RLock()
	err := p.inner.Publish(topic, msg)
	t.RUnlock()
	if !isRefusal(err) {
		return err
	}

	t.Lock()
	defer t.Unlock()
	alone := p.inner.Publish(topic, msg)
	if isRefusal(alone) {
		return fmt.Errorf("%w: %w", errRefused, alone)
	}
	if alone == nil {
		t.warnOnce.Do(func() {
			// Cause: a batch was larger than the topic allows.
			// Cure: lower Producer.MaxMessageBytes to the topic's max.message.bytes.
			p.logger.Error("broker refused a batch of this topic but accepts its messages one by one, which is slow: "+
				"if this repeats, lower Producer.MaxMessageBytes to the topic's max.message.bytes",
				err, watermill.LogFields{"topic": topic})
		})
	}
	return alone
}

// Close waits for calls of Publish in flight, or for the attempt to connect, and closes the connections. That
// takes up to half a minute if a broker accepts connections and never responds. Later calls return nil.
func (p *Publisher) Close() error {
	p.open.Lock()
	defer p.open.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	return p.inner.Close()
}

// isRefusal reports whether sarama returns the error for every message of a batch, although a single message may be at
// fault.
func isRefusal(err error) bool {
	var encoding sarama.PacketEncodingError
	return isAny(err, refusals) || errors.As(err, &encoding)
}
