package kafka

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// connectPause is the time after a failed attempt to connect, or request for metadata, during which calls fail without
// another one.
const connectPause = time.Second

// producer is a sarama producer that connects on first use, because sarama's constructors fail while Kafka is down.
// Once connected it reconnects on its own.
type producer struct {
	brokers   []string
	settings  *sarama.Config
	marshaler wmkafka.Marshaler

	mu     sync.Mutex
	sender sarama.SyncProducer // nil until connected
	client sarama.Client
	err    error // error of the last attempt, made at tried
	tried  time.Time
}

var _ message.Publisher = (*producer)(nil)

// connected returns the producer, or the error of an attempt within the last second.
func (p *producer) connected() (sarama.SyncProducer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sender == nil && (p.err == nil || time.Since(p.tried) >= connectPause) {
		p.err = p.connect()
		p.tried = time.Now()
	}
	return p.sender, p.err
}

func (p *producer) connect() error {
	client, err := sarama.NewClient(p.brokers, p.settings)
	if err != nil {
		return fmt.Errorf("%w: %w", sarama.ErrNotConnected, err)
	}
	sender, err := sarama.NewSyncProducerFromClient(&refresher{Client: client, failures: map[string]failure{}})
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", sarama.ErrNotConnected, err), client.Close())
	}
	p.sender, p.client = sender, client
	return nil
}

// refresher is a client that remembers a failed request for metadata for connectPause. While a broker does not respond,
// a request takes many seconds, and sarama makes one for each message that waits for a partition, one after another.
type refresher struct {
	sarama.Client

	mu       sync.Mutex
	failures map[string]failure // by the topics of the request
}

type failure struct {
	err error
	at  time.Time
}

func (r *refresher) RefreshMetadata(topics ...string) error {
	of := strings.Join(topics, " ")
	r.mu.Lock()
	last := r.failures[of]
	r.mu.Unlock()
	if last.err != nil && time.Since(last.at) < connectPause {
		return last.err
	}
	err := r.Client.RefreshMetadata(topics...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.failures, of); err != nil {
		r.failures[of] = failure{err, time.Now()}
	}
	return err
}

// Publish sends messages one after another.
func (p *producer) Publish(topic string, messages ...*message.Message) error {
	sender, err := p.connected()
	if err != nil {
		return err
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

// Close is called once, and never concurrently with Publish.
func (p *producer) Close() error {
	if p.sender == nil {
		return nil
	}
	if err := errors.Join(p.sender.Close(), p.client.Close()); err != nil {
		return fmt.Errorf("kafka: close: %w", err)
	}
	return nil
}
