package integration_test

import (
	"os"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
)

// TestPubSubOfKafkaSubscriber runs Watermill's suite on watermill-kafka's publisher and our subscriber, with one key. A
// group resumes where it stopped, and TestInboundBrokerRestart restarts the broker.
func TestPubSubOfKafkaSubscriber(t *testing.T) {
	extended(t)
	server := kafkaServer(t)
	if server.Fake() {
		t.Skip("a fake broker proves nothing about groups")
	}
	if !runSuite(t, "TestNewSubscriberReceivesOldMessages", "TestReconnect") {
		return
	}
	suiteLeaks(t)
	construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		logger := watermill.NewStdLogger(false, false)
		pub, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
			Brokers: server.Brokers(),
			Marshaler: wmkafka.NewWithPartitioningMarshaler(func(string, *message.Message) (string, error) {
				return "one", nil
			}),
		}, logger)
		require.NoError(t, err)
		settings := kafka.DefaultSaramaSubscriberConfig()
		settings.Version = sarama.V2_8_0_0
		settings.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
		sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{
			SubscriberConfig: wmkafka.SubscriberConfig{
				Brokers: server.Brokers(), Unmarshaler: wmkafka.DefaultMarshaler{}, ConsumerGroup: group,
				OverwriteSaramaConfig:  settings,
				InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1},
			},
			Backoff: outbox.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		}, logger)
		require.NoError(t, err)
		t.Cleanup(func() { // the suite does not close all of them
			require.NoError(t, sub.Close())
			_ = pub.Close()
		})
		return pub, sub
	}
	tests.TestPubSub(t, tests.Features{
		Persistent: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		ConsumerGroups: true,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return construct(t, "test") }, construct)
}

// TestPubSubOfJetStreamSubscriber runs Watermill's suite on our publisher and subscriber, with one key. A new
// subscription resumes where the consumer stopped, and TestInboundBrokerRestart stops the server.
func TestPubSubOfJetStreamSubscriber(t *testing.T) {
	extended(t)
	const suiteServer = "OUTBOX_PUBSUB_NATS" // set by the parent: a server started here would count as a leak
	url := os.Getenv(suiteServer)
	if url == "" {
		url = natsServer(t).URL()
		t.Setenv(suiteServer, url)
	}
	if !runSuite(t, "TestNewSubscriberReceivesOldMessages", "TestReconnect") {
		return
	}
	_, _, prefix := natsStream(t, url, nil)
	suiteLeaks(t)
	construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		logger := watermill.NewStdLogger(false, false)
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: url}, logger)
		require.NoError(t, err)
		sub, err := nats.NewSubscriber(nats.SubscriberConfig{
			URL: url, Consumer: group, AckWait: 3 * time.Second,
			Key:     func(*natsgo.Msg) []byte { return []byte("one") },
			Backoff: outbox.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		}, logger)
		require.NoError(t, err)
		t.Cleanup(func() { // the suite does not close all of them
			require.NoError(t, sub.Close())
			_ = pub.Close()
		})
		return pub, sub
	}
	tests.TestPubSub(t, tests.Features{
		Persistent: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		ConsumerGroups:    true,
		GenerateTopicFunc: func(c tests.TestContext) string { return prefix + string(c.TestID) },
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return construct(t, "test") }, construct)
}
