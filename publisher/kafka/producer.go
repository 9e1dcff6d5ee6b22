package kafka

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// connectPause is between two attempts to connect; an attempt without an answer takes a second or more itself.
const connectPause = time.Second

// producer is a sarama producer that connects in the background, as sarama's own reconnects once it exists. It
// stands where a watermill-kafka publisher would, which cannot be made before Kafka is there, and which
// leaves sarama's client behind when the client connects but gets no producer id.
type producer struct {
	brokers   []string
	settings  *sarama.Config
	marshaler wmkafka.Marshaler
	tracer    wmkafka.SaramaTracer
	logger    watermill.LoggerAdapter

	tried   chan struct{} // closed when the first attempt has ended
	closing chan struct{} // closed by Close
	ended   chan struct{} // closed when connect has returned

	mu     sync.RWMutex
	sender sarama.SyncProducer // nil until connected
	free   func() error        // closes sender and its client
	err    error               // of the last attempt
}

var _ message.Publisher = (*producer)(nil)

func startProducer(p *producer) *producer {
	p.tried, p.closing, p.ended = make(chan struct{}), make(chan struct{}), make(chan struct{})
	go p.connect()
	return p
}

// connect tries until it succeeds or Close is called.
func (p *producer) connect() {
	defer close(p.ended)
	var said string
	for attempt := 1; ; attempt++ {
		sender, free, err := p.open()
		p.mu.Lock()
		p.sender, p.free, p.err = sender, free, err
		p.mu.Unlock()
		if attempt == 1 {
			close(p.tried)
		}
		if err == nil {
			if said != "" {
				p.logger.Info("connected to Kafka", watermill.LogFields{"brokers": p.brokers, "attempts": attempt})
			}
			return
		}
		if said != err.Error() {
			said = err.Error()
			// Cause: no broker can be reached, or TLS or SASL is refused.
			// Cure: check PublisherConfig.Brokers, the network and the credentials; publishes are unavailable
			// until then.
			p.logger.Error("connecting to Kafka failed: retrying", err, watermill.LogFields{"brokers": p.brokers})
		}
		select {
		case <-p.closing:
			return
		case <-time.After(connectPause):
		}
	}
}

// open makes one attempt. Its timeouts are those of the settings.
func (p *producer) open() (_ sarama.SyncProducer, free func() error, err error) {
	client, err := sarama.NewClient(p.brokers, p.settings)
	if err != nil {
		return nil, nil, err
	}
	sender, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	if p.tracer != nil {
		sender = p.tracer.WrapSyncProducer(p.settings, sender)
	}
	return sender, func() error { return errors.Join(sender.Close(), client.Close()) }, nil
}

// Publish waits for the first attempt to connect. Until a later one succeeds it returns the error of the last.
func (p *producer) Publish(topic string, messages ...*message.Message) error {
	<-p.tried
	p.mu.RLock()
	sender, err := p.sender, p.err
	p.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("%w: %w", sarama.ErrNotConnected, err)
	}
	for _, msg := range messages {
		record, err := p.marshaler.Marshal(topic, msg)
		if err != nil {
			return fmt.Errorf("kafka: marshal message %s: %w", msg.UUID, err)
		}
		if _, _, err := sender.SendMessage(record); err != nil {
			return fmt.Errorf("kafka: send message %s: %w", msg.UUID, err)
		}
	}
	return nil
}

// Close waits for an attempt to connect that is under way. It is called once, and not while others publish.
func (p *producer) Close() error {
	close(p.closing)
	<-p.ended
	if p.free == nil {
		return nil
	}
	if err := p.free(); err != nil {
		return fmt.Errorf("kafka: close: %w", err)
	}
	return nil
}
