package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/broker"
)

// TopicReaderConfig configures NewTopicReader. Only Brokers is required.
type TopicReaderConfig struct {
	// Brokers are the host:port addresses to start from. Required.
	Brokers []string
	// Configure changes the settings that SaramaConfig returns, as that of PublisherConfig does: TLS, SASL. Default:
	// none.
	Configure func(*sarama.Config) error
	// Unmarshaler finds the UUID of a message, where the publisher has a Marshaler of its own. Default: the header in
	// which watermill-kafka's DefaultMarshaler carries it.
	Unmarshaler wmkafka.Unmarshaler
}

// TopicReader reads what a Kafka cluster holds, for admin.Reconcile and RedriveTopic, and says what it may lose, for
// admin.Doctor. It
// needs the rights to read the topics and to describe their settings. It connects when it is first used and is safe for
// concurrent use.
type TopicReader struct {
	cfg      TopicReaderConfig
	settings *sarama.Config

	mu     sync.Mutex
	client sarama.Client // nil until it is used
	closed bool
}

var (
	_ broker.TopicReader = (*TopicReader)(nil)
	_ broker.Checker     = (*TopicReader)(nil)

	_ broker.MessageReader = (*TopicReader)(nil)
)

// NewTopicReader makes a TopicReader. It does no I/O, and returns an error that names the field at fault. Nothing is
// logged so far.
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

// Close closes the connections. A call that is under way fails then. It may be called several times.
func (l *TopicReader) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.client == nil || l.client.Closed() {
		return nil
	}
	return l.client.Close()
}

func (l *TopicReader) connect() (sarama.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, outbox.ErrClosed
	}
	if l.client == nil {
		client, err := sarama.NewClient(l.cfg.Brokers, l.settings)
		if err != nil {
			return nil, fmt.Errorf("kafka: connect: %w", err)
		}
		l.client = client
	}
	return l.client, nil
}

// topicSettings are what a topic promises.
type topicSettings struct {
	compacted, unclean bool
	keeps              time.Duration // -1 = for ever
	sized              bool          // it deletes what is too much
	minInSync          int
}

func (l *TopicReader) settingsOf(client sarama.Client, topic string) (s topicSettings, err error) {
	asks, err := sarama.NewClusterAdminFromClient(client) // not closed: that would close the client
	if err != nil {
		return s, err
	}
	results, err := describe(asks, topic)
	if err != nil && !errors.As(err, new(sarama.KError)) { // connections may be dead
		askAll(client, topic)
		results, err = describe(asks, topic)
	}
	var entries []sarama.ConfigEntry
	for _, r := range results {
		entries = append(entries, r.Configs...)
		if err == nil && r.ErrorCode != sarama.ErrNoError {
			err = r.ErrorCode
		}
	}
	if err == nil && len(entries) == 0 {
		err = sarama.ErrIncompleteResponse
	}
	if err != nil {
		return s, fmt.Errorf("kafka: describe the settings of topic %q, which needs the permission DescribeConfigs: %w",
			topic, err)
	}
	s.keeps = -1
	for _, e := range entries {
		switch e.Name {
		case "cleanup.policy":
			s.compacted = strings.Contains(e.Value, "compact")
		case "unclean.leader.election.enable":
			s.unclean = e.Value == "true"
		case "min.insync.replicas":
			s.minInSync, _ = strconv.Atoi(e.Value)
		case "retention.bytes":
			s.sized = e.Value != "" && e.Value != "-1"
		case "retention.ms":
			if ms, err := strconv.ParseInt(e.Value, 10, 64); err == nil && ms >= 0 {
				s.keeps = time.Duration(min(ms, int64(1<<62/time.Millisecond))) * time.Millisecond
			}
		}
	}
	return s, nil
}

func describe(asks sarama.ClusterAdmin, topic string) ([]*sarama.ConfigResourceResult, error) {
	return asks.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: topic}},
		sarama.DescribeConfigsOptions{})
}

// Keeps returns retention.ms of a topic.
func (l *TopicReader) Keeps(_ context.Context, topic string) (retention time.Duration, known bool, err error) {
	client, err := l.connect()
	if err != nil {
		return 0, false, err
	}
	_, err = client.Partitions(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrInvalidTopic) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("kafka: topic %q: %w", topic, err)
	}
	s, err := l.settingsOf(client, topic)
	return s.keeps, err == nil, err
}

// Check says of those of the topics that the cluster has which may lose what was acknowledged, and which it has not.
func (l *TopicReader) Check(ctx context.Context, topics []string) (risks []broker.Risk, missing []string, err error) {
	client, err := l.connect()
	if err != nil {
		return nil, nil, err
	}
	warn := func(topic, evidence, cure string) {
		risks = append(risks, broker.Risk{
			Severity: broker.Warning, Evidence: fmt.Sprintf("Kafka topic %q %s", topic, evidence), Cure: cure,
		})
	}
	for _, topic := range topics {
		if ctx.Err() != nil {
			return risks, missing, ctx.Err()
		}
		partitions, err := client.Partitions(topic)
		if errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrInvalidTopic) {
			missing = append(missing, topic)
			continue
		}
		if err != nil {
			return risks, missing, fmt.Errorf("kafka: topic %q: %w", topic, err)
		}
		replicas := -1
		for _, p := range partitions {
			all, err := client.Replicas(topic, p)
			if err != nil {
				return risks, missing, fmt.Errorf("kafka: replicas of topic %q: %w", topic, err)
			}
			if replicas < 0 || len(all) < replicas {
				replicas = len(all)
			}
		}
		s, err := l.settingsOf(client, topic)
		if err != nil {
			return risks, missing, err
		}
		if replicas == 1 {
			warn(topic, "has one replica, which writes to disk when its system decides: the last acknowledged "+
				"messages are lost with it",
				"raise its replication factor to 3 (kafka-reassign-partitions), and set min.insync.replicas=2")
		} else if s.minInSync < 2 {
			warn(topic, fmt.Sprintf("has %d replicas, and min.insync.replicas=%d: while the others are down, one acknowledges "+
				"alone, and its messages are lost with it", replicas, s.minInSync),
				l.alter(topic, "min.insync.replicas=2"))
		}
		if s.unclean {
			warn(topic, "lets an out-of-sync replica become leader: messages that it lacks are lost",
				l.alter(topic, "unclean.leader.election.enable=false"))
		}
	}
	return risks, missing, nil
}

// alter is the command that changes a setting of a topic, whose name needs no quotes where Kafka has it.
func (l *TopicReader) alter(topic, setting string) string {
	return "kafka-configs --bootstrap-server " + l.cfg.Brokers[0] + " --alter --entity-type topics --entity-name " +
		topic + " --add-config " + setting
}
