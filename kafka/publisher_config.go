package kafka

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/millrace-go/watermill-outbox/internal/cloudevents"
)

// PublisherConfig configures NewPublisher. Only Brokers is required.
type PublisherConfig struct {
	// Brokers are host:port addresses to start from. Required.
	Brokers []string

	// Marshaler creates Kafka messages; default: watermill-kafka's DefaultMarshaler. A record key that it sets is kept,
	// otherwise the ordering key is used.
	Marshaler wmkafka.Marshaler

	// Configure changes the settings that docs/start/kafka.md lists: TLS, SASL, compression, version, limits; default
	// none. Settings that could lose or reorder messages are errors.
	Configure func(*sarama.Config) error
}

func (c PublisherConfig) validate(config string) error {
	if len(c.Brokers) == 0 {
		return fmt.Errorf("kafka: %s.Brokers is empty: name at least one host:port", config)
	}
	for i, broker := range c.Brokers {
		if strings.Contains(broker, "@") { // the error would quote it
			return fmt.Errorf("kafka: %s.Brokers: address %d is not shown because it may hold a password: "+
				"name host:port alone, and log in by Configure (Net.SASL)", config, i+1)
		}
		if _, _, err := net.SplitHostPort(broker); err != nil {
			return fmt.Errorf("kafka: %s.Brokers: %q is not host:port: %w", config, broker, err)
		}
	}
	if events, ok := c.Marshaler.(CloudEvents); ok {
		if err := cloudevents.CheckSource(events.Source); err != nil {
			return fmt.Errorf("kafka: %s.Marshaler: %w", config, err)
		}
	}
	return nil
}

// sarama returns the settings after Configure has changed them.
func (c PublisherConfig) sarama() (*sarama.Config, error) {
	sc := safeSettings()
	if c.Configure != nil {
		if err := c.Configure(sc); err != nil {
			return nil, fmt.Errorf("kafka: PublisherConfig.Configure: %w", err)
		}
	}
	return sc, validateSarama(sc)
}

// safeSettings returns the settings that docs/start/kafka.md lists.
func safeSettings() *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = "watermill-outbox"

	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1 // required by sarama
	c.Producer.Return.Successes = true
	c.Producer.Return.Errors = true

	c.Producer.Retry.Max = 1
	c.Producer.Retry.Backoff = 250 * time.Millisecond
	c.Producer.Transaction.Retry.Max = 1 // for requests of a producer id
	c.Producer.Timeout = 4 * time.Second
	c.Net.DialTimeout = 3 * time.Second
	c.Net.ReadTimeout = 5 * time.Second
	c.Net.WriteTimeout = 5 * time.Second
	c.Metadata.Retry.Max = 1
	c.Metadata.Retry.Backoff = time.Second
	c.Metadata.Timeout = 5 * time.Second
	return c
}

// validateSarama returns an error that names the field if a publisher with these settings could lose or reorder
// messages, or if sarama refuses them.
func validateSarama(c *sarama.Config) error {
	unsafe := func(field, want, why string) error {
		return fmt.Errorf("kafka: unsafe behind an outbox: %s must be %s: %s", field, want, why)
	}
	switch {
	case c.Producer.RequiredAcks != sarama.WaitForAll:
		return unsafe("Producer.RequiredAcks", "WaitForAll", "messages that only the leader has are lost with it")
	case c.Producer.Transaction.ID != "":
		return unsafe("Producer.Transaction.ID", "empty", "no Kafka transaction is begun, so every message would fail")
	case !c.Producer.Return.Successes:
		return unsafe("Producer.Return.Successes", "true", "a synchronous producer waits for it")
	case !c.Producer.Return.Errors:
		return unsafe("Producer.Return.Errors", "true", "a synchronous producer waits for it")
	case c.Producer.Partitioner == nil:
		return unsafe("Producer.Partitioner", "set", "the key must choose the partition")
	case !keepsKeyTogether(c.Producer.Partitioner("")):
		return unsafe("Producer.Partitioner", "a partitioner that always sends a key to the same partition",
			"otherwise messages of a key lose their order")
	}
	if err := c.Validate(); err != nil {
		return fmt.Errorf("kafka: validate sarama config: %w", err)
	}
	return nil
}

func keepsKeyTogether(p sarama.Partitioner) bool {
	if d, ok := p.(sarama.DynamicConsistencyPartitioner); ok {
		return d.MessageRequiresConsistency(&sarama.ProducerMessage{Key: sarama.StringEncoder("key")})
	}
	return p.RequiresConsistency()
}
