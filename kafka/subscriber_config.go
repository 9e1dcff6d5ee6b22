package kafka

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/observe"
)

// maxInstanceID is Kafka's limit.
const maxInstanceID = 249

// SubscriberConfig configures NewSubscriber. It requires the embedded fields Brokers, Unmarshaler and ConsumerGroup.
type SubscriberConfig struct {
	// SubscriberConfig is watermill-kafka's; Brokers, Unmarshaler and ConsumerGroup are required. OverwriteSaramaConfig
	// defaults to DefaultSaramaSubscriberConfig. NackResendSleep and ReconnectRetrySleep are ignored.
	wmkafka.SubscriberConfig

	// Concurrency limits the delivered messages that are not acked yet; default 16. Messages that failed before use at
	// most half of it. Each handler in middleware.Tx needs a connection.
	Concurrency int

	// Key returns the key by which messages of a partition keep their order; default: the Kafka key. Messages without a
	// key are not ordered. It must be safe for concurrent use, and must not hang.
	Key func(*sarama.ConsumerMessage) []byte

	// MaxAhead limits the messages read beyond the oldest unfinished message of a partition; default 10,000. At the limit
	// the partition pauses. Up to this many messages are delivered again after a crash or rebalance.
	MaxAhead int

	// MaxBytes limits the size of unfinished messages; default 64 MiB. Above it, partitions pause. Fetched batches and a
	// copy of each delivered message are not counted.
	MaxBytes int

	// Backoff is the wait of a key after a nack; default 100 ms doubling to 10 s. outbox.RetryAfter overrides it.
	Backoff outbox.Backoff

	// RevokeTimeout is how long a revoked partition waits for its handlers; default 30 s, or half of
	// Consumer.Group.Rebalance.Timeout if that is less. Then their contexts end, and their messages are delivered again.
	RevokeTimeout time.Duration

	// CloseTimeout is how long a closing subscription waits for its handlers; default 5 s. Keep it below
	// message.RouterConfig.CloseTimeout (30 s).
	CloseTimeout time.Duration

	// Observers watch the partitions if they come from observe/prom; default none.
	Observers []observe.Observer
}

// DefaultSaramaSubscriberConfig returns the default of OverwriteSaramaConfig: watermill-kafka's, except that a new
// group begins at the oldest message (Consumer.Offsets.Initial), and messages of aborted transactions are skipped
// (Consumer.IsolationLevel). Each call returns a new config.
func DefaultSaramaSubscriberConfig() *sarama.Config {
	c := wmkafka.DefaultSaramaSubscriberConfig()
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	return c
}

func (c *SubscriberConfig) setDefaults() {
	if c.OverwriteSaramaConfig == nil {
		c.OverwriteSaramaConfig = DefaultSaramaSubscriberConfig()
	}
	//lint:ignore SA1019 a service that moves here from watermill-kafka may have it set
	if c.OTELEnabled && c.Tracer == nil {
		c.Tracer = wmkafka.NewOTELSaramaTracer()
	}
	if c.Key == nil {
		c.Key = func(msg *sarama.ConsumerMessage) []byte { return msg.Key }
	}
	inbound.Fill(&c.Concurrency, 16)
	inbound.Fill(&c.MaxAhead, 10_000)
	inbound.Fill(&c.MaxBytes, 64<<20)
	inbound.Fill(&c.RevokeTimeout, min(30*time.Second, c.OverwriteSaramaConfig.Consumer.Group.Rebalance.Timeout/2))
	inbound.Fill(&c.CloseTimeout, 5*time.Second)
	c.Backoff = outbox.Backoff(core.Backoff(c.Backoff).WithDefaults(100*time.Millisecond, 10*time.Second))
}

// validate returns an error that names every invalid field.
func (c SubscriberConfig) validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("kafka: SubscriberConfig.Brokers is empty: name at least one host:port"))
	}
	for i, broker := range c.Brokers {
		if _, _, err := net.SplitHostPort(broker); strings.Contains(broker, "@") || err != nil { // may contain a password
			errs = append(errs, fmt.Errorf("kafka: SubscriberConfig.Brokers: address %d is not host:port: "+
				"log in by OverwriteSaramaConfig (Net.SASL)", i+1))
		}
	}
	if c.Unmarshaler == nil {
		errs = append(errs, errors.New("kafka: SubscriberConfig.Unmarshaler is nil: "+
			"watermill-kafka's DefaultMarshaler reads what its publisher writes"))
	}
	if c.ConsumerGroup == "" {
		errs = append(errs, errors.New("kafka: SubscriberConfig.ConsumerGroup is empty: "+
			"the group records which messages are done: name the service and the handler"))
	}
	errs = append(errs,
		inbound.Positive("kafka: SubscriberConfig.Concurrency", c.Concurrency),
		inbound.Positive("kafka: SubscriberConfig.MaxAhead", c.MaxAhead),
		inbound.Positive("kafka: SubscriberConfig.MaxBytes", c.MaxBytes),
		inbound.Positive("kafka: SubscriberConfig.RevokeTimeout", c.RevokeTimeout),
		inbound.Positive("kafka: SubscriberConfig.CloseTimeout", c.CloseTimeout),
		core.Backoff(c.Backoff).Validate("kafka: SubscriberConfig.Backoff"),
	)
	settings := c.OverwriteSaramaConfig
	if limit := settings.Consumer.Group.Rebalance.Timeout; c.RevokeTimeout >= limit {
		errs = append(errs, fmt.Errorf("kafka: SubscriberConfig.RevokeTimeout is %s: "+
			"it must be less than Consumer.Group.Rebalance.Timeout, %s: "+
			"Kafka removes a member that takes longer from the group", c.RevokeTimeout, limit))
	}
	if err := settings.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("kafka: SubscriberConfig.OverwriteSaramaConfig: %w", err))
	}
	return errors.Join(errs...)
}

// logUnused logs fields of watermill-kafka's config that are set but have no effect here.
func (c SubscriberConfig) logUnused(logger watermill.LoggerAdapter) {
	var unused []string
	if c.NackResendSleep != 0 {
		unused = append(unused, "NackResendSleep")
	}
	if c.ReconnectRetrySleep != 0 {
		unused = append(unused, "ReconnectRetrySleep")
	}
	if len(unused) > 0 {
		logger.Info("fields of watermill-kafka's config are not used: SubscriberConfig.Backoff is the wait after a nack",
			watermill.LogFields{"fields": unused})
	}
}

// settings returns the sarama config of a subscription's client.
func (c SubscriberConfig) settings(topic string) (*sarama.Config, error) {
	settings := *c.OverwriteSaramaConfig
	settings.Consumer.Return.Errors = true             // needed to log them
	settings.Consumer.Offsets.AutoCommit.Enable = true // commits the marked offsets: those of finished messages
	if id := &settings.Consumer.Group.InstanceId; *id != "" {
		// Two members with the same id would fence each other.
		if *id += "-" + topic; len(*id) > maxInstanceID {
			return nil, fmt.Errorf("kafka: Consumer.Group.InstanceId and the topic are longer than %d bytes together: "+
				"give it a shorter id", maxInstanceID)
		}
	}
	return &settings, nil
}
