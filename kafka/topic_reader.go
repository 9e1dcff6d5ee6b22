package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/broker"
)

// TopicReaderConfig configures NewTopicReader. Only Brokers is required.
type TopicReaderConfig struct {
	// Brokers are host:port addresses to start from. Required.
	Brokers []string
	// Configure changes the settings of the connection, as PublisherConfig.Configure: TLS, SASL; default none.
	Configure func(*sarama.Config) error
	// Unmarshaler finds the UUID of a message if the publisher has its own Marshaler; default: watermill-kafka's
	// DefaultMarshaler.
	Unmarshaler wmkafka.Unmarshaler
}

// TopicReader reads the contents of a Kafka cluster for admin.Reconcile, and its durability settings for admin.Doctor.
// It needs the rights to read topics and describe their settings. It connects on first use and is safe for concurrent
// use.
type TopicReader struct {
	cfg      TopicReaderConfig
	settings *sarama.Config

	mu     sync.Mutex
	client sarama.Client // nil until first use; guarded by mu
	closed bool          // guarded by mu
}

var (
	_ broker.TopicReader = (*TopicReader)(nil)
	_ broker.Checker     = (*TopicReader)(nil)
)

// NewTopicReader returns a TopicReader. It does no I/O, and returns an error that names an invalid field.
func NewTopicReader(cfg TopicReaderConfig, _ watermill.LoggerAdapter) (*TopicReader, error) {
	of := PublisherConfig{Brokers: cfg.Brokers, Configure: cfg.Configure}
	if err := of.validate("TopicReaderConfig"); err != nil {
		return nil, err
	}
	settings, err := of.sarama()
	if err != nil {
		return nil, err
	}
	settings.Metadata.AllowAutoTopicCreation = false
	return &TopicReader{cfg: cfg, settings: settings}, nil
}

// Close closes the connections. Calls in flight fail. It may be called several times.
func (l *TopicReader) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.client == nil || l.client.Closed() {
		return nil
	}
	return l.client.Close()
}

// partitions connects, and returns the partitions of a topic.
func (l *TopicReader) partitions(topic string) (sarama.Client, []int32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, outbox.ErrClosed
	}
	if l.client == nil {
		client, err := sarama.NewClient(l.cfg.Brokers, l.settings)
		if err != nil {
			return nil, nil, fmt.Errorf("kafka: connect: %w", err)
		}
		l.client = client
	}
	all, err := l.client.Partitions(topic)
	if err != nil {
		err = fmt.Errorf("kafka: topic %q: %w", topic, err)
	}
	return l.client, all, err
}

func isMissing(err error) bool {
	return errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrInvalidTopic)
}

// Each calls fn with the UUID of each message of a topic that was sent at or after a time, by Kafka's timestamps: with
// message.timestamp.type CreateTime, the default, by the sender's clock. Messages without a UUID are skipped. It stops
// and returns the error if fn fails. It returns an error if the topic does not exist, or if retention or compaction may
// have deleted messages; because of retention.bytes only after fn was called with all messages.
func (l *TopicReader) Each(ctx context.Context, topic string, after time.Time, fn func(uuid string) error) error {
	client, partitions, err := l.partitions(topic)
	if err != nil {
		return err
	}
	s, err := settingsOf(client, topic)
	if err != nil {
		return err
	}
	if s.compacted {
		return fmt.Errorf(
			"kafka: topic %q is compacted: a missing message may have been replaced by a later one with the same "+
				"key", topic)
	}
	if s.keeps >= 0 && after.Before(time.Now().Add(-s.keeps)) {
		return fmt.Errorf("kafka: topic %q deletes messages after %s, and %s is longer ago: missing messages may "+
			"have been deleted this way; compare only later messages (Filter.After)",
			topic, s.keeps, after.UTC().Format(time.RFC3339))
	}
	for _, p := range partitions {
		r := partitionReader{client: client, topic: topic, partition: p}
		err := r.read(ctx, after, func(record *sarama.ConsumerMessage) error {
			msg, err := l.unmarshal(record)
			if err != nil || msg.UUID == "" {
				return err
			}
			return fn(msg.UUID)
		})
		if err == nil && s.sized {
			err = r.whole(ctx, after)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *TopicReader) unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := Unmarshaler{Unmarshaler: l.cfg.Unmarshaler}.Unmarshal(record)
	if err != nil {
		return nil, fmt.Errorf("kafka: message %d of partition %d of topic %q: %w", record.Offset, record.Partition,
			record.Topic, err)
	}
	return msg, nil
}
