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

// SubscriberConfig configures NewSubscriber. Required are the fields Brokers, Unmarshaler and ConsumerGroup of what it
// embeds.
type SubscriberConfig struct {
	// SubscriberConfig is that of watermill-kafka's NewSubscriber. ConsumerGroup is required, because what is done is kept
	// in it. OverwriteSaramaConfig is by default that of DefaultSaramaSubscriberConfig. It is copied, and each subscription has a client of
	// its own; if it names a Consumer.Group.InstanceId, the topic is added to that, because a subscription is a member of
	// the group. NackResendSleep and ReconnectRetrySleep are not used, and a line says so: see Backoff.
	wmkafka.SubscriberConfig

	// Concurrency is how many messages of a subscription are delivered and not acked, those of all its partitions
	// together; default 16. Messages that failed before have at most half of these places. Each handler in middleware.Tx
	// needs a connection of the pool; more handlers than connections only wait for one.
	Concurrency int

	// Key says which messages keep their order: those of a partition with the same key are delivered one after another.
	// Default: the Kafka message's key. A message without bytes in it waits for no other. The key must decide the
	// partition when the message is produced, or there is no order to keep. It is called once for each message, before
	// Unmarshaler, and must be safe for concurrent use. While it hangs, so does its partition, and in the end the group.
	Key func(*sarama.ConsumerMessage) []byte

	// MaxAhead is how many messages of a partition are read beyond the oldest one that is not done; default 10,000. Then
	// the partition pauses until half is left. So many messages may be delivered again after a crash or a
	// rebalance.
	MaxAhead int

	// MaxBytes is how large the messages may be together that a subscription has read and that are not done; default 64
	// MiB. Above it partitions pause, except those that have none in memory. What was fetched already comes on top: for
	// each partition Consumer.Fetch.Default (1 MiB), which is the size before it is decompressed. So does a copy of each
	// message that is delivered and not acked.
	MaxBytes int

	// Backoff is the wait of a key after its message was nacked, by nacks of that message in a row; default 100 ms
	// doubling to 10 s. For an outbox.RetryAfter that middleware.Outcomes has seen it is the wait that the handler asked
	// for.
	Backoff outbox.Backoff

	// RevokeTimeout is how long a partition that is taken away waits for its handlers; default 30 s, or half of sarama's
	// Consumer.Group.Rebalance.Timeout if that is less, below which it must be: all of the group waits for it. Then the
	// contexts of the messages end, their acks count for nothing, and they are delivered again.
	RevokeTimeout time.Duration

	// CloseTimeout is the same for the end of a subscription; default 5 s. The contexts of the messages end when it
	// begins, as those of all Watermill's subscribers do. It must be less than message.RouterConfig.CloseTimeout (30 s).
	CloseTimeout time.Duration

	// Observers are told of the partitions, if they are an observe.PartitionObserver.
	Observers []observe.Observer
}

// DefaultSaramaSubscriberConfig returns the default of OverwriteSaramaConfig: that of watermill-kafka, but a group that has committed
// nothing begins at the oldest message (Consumer.Offsets.Initial), and messages of aborted transactions are not
// delivered (Consumer.IsolationLevel). Each call returns a new one.
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

// validate names every field at fault.
func (c SubscriberConfig) validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("kafka: SubscriberConfig.Brokers is empty: name at least one host:port"))
	}
	for i, broker := range c.Brokers {
		if _, _, err := net.SplitHostPort(broker); strings.Contains(broker, "@") || err != nil { // it may hold a password
			errs = append(errs, fmt.Errorf("kafka: SubscriberConfig.Brokers: address %d is no host:port: "+
				"log in by OverwriteSaramaConfig (Net.SASL)", i+1))
		}
	}
	if c.Unmarshaler == nil {
		errs = append(errs, errors.New("kafka: SubscriberConfig.Unmarshaler is nil: "+
			"watermill-kafka's DefaultMarshaler reads what its publisher writes"))
	}
	if c.ConsumerGroup == "" {
		errs = append(errs, errors.New("kafka: SubscriberConfig.ConsumerGroup is empty: "+
			"the group keeps which messages are done: name the service and the handler"))
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
			"Kafka takes a member that needs longer out of the group", c.RevokeTimeout, limit))
	}
	if err := settings.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("kafka: SubscriberConfig.OverwriteSaramaConfig: %w", err))
	}
	return errors.Join(errs...)
}

// tellUnused logs which fields of watermill-kafka's config are set and do nothing here.
func (c SubscriberConfig) tellUnused(logger watermill.LoggerAdapter) {
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

// settings returns those of the client of a subscription.
func (c SubscriberConfig) settings(topic string) (*sarama.Config, error) {
	settings := *c.OverwriteSaramaConfig
	settings.Consumer.Return.Errors = true             // they are logged
	settings.Consumer.Offsets.AutoCommit.Enable = true // of what is marked: messages that are done
	if id := &settings.Consumer.Group.InstanceId; *id != "" {
		// Two members with one id fence each other.
		if *id += "-" + topic; len(*id) > maxInstanceID {
			return nil, fmt.Errorf("kafka: Consumer.Group.InstanceId and the topic are longer than %d bytes together: "+
				"give it a shorter id", maxInstanceID)
		}
	}
	return &settings, nil
}
