package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// largestOfRabbitMQ is the message size that the shared server accepts, in bytes.
const largestOfRabbitMQ = 1000

var startRabbitMQ = shared(func(ctx context.Context) (*services.RabbitMQ, error) {
	return services.StartRabbitMQ(ctx, services.Options{
		RabbitMQSettings: []string{fmt.Sprint("max_message_size=", largestOfRabbitMQ)},
	})
})

// sharedRabbitMQ returns the server that all tests of the run share. Tests that stop a server start their own.
func sharedRabbitMQ(t testing.TB) *services.RabbitMQ {
	t.Helper()
	server, err := startRabbitMQ()
	needsRabbitMQ(t, err)
	return server
}

// rabbitMQ starts a server for this test.
func rabbitMQ(t testing.TB) *services.RabbitMQ {
	t.Helper()
	server, err := services.StartRabbitMQ(t.Context(), services.Options{})
	needsRabbitMQ(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// needsRabbitMQ skips the test if RabbitMQ is not installed, except in CI.
func needsRabbitMQ(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip("RabbitMQ is not installed")
	}
	require.NoError(t, err)
}

// amqpChannel opens a channel. end closes its connection, which requeues all deliveries that were not acked.
func amqpChannel(url string) (ch *amqp091.Channel, end func(), err error) {
	conn, err := amqp091.DialConfig(url, amqp091.Config{Dial: amqp091.DefaultDial(patience)})
	if err != nil {
		return nil, nil, err
	}
	end = func() { _ = conn.Close() }
	if ch, err = conn.Channel(); err != nil {
		end()
		return nil, nil, err
	}
	return ch, end, nil
}

// amqpQueue declares a durable queue; watermill-amqp's queue configuration uses its name as the topic.
func amqpQueue(t testing.TB, url string, args amqp091.Table) string {
	t.Helper()
	ch, end, err := amqpChannel(url)
	require.NoError(t, err)
	defer end()
	name := "q-" + watermill.NewShortUUID()
	_, err = ch.QueueDeclare(name, true, false, false, false, args)
	require.NoError(t, err)
	return name
}

// amqpStored reads the messages of a queue and leaves them there.
func amqpStored(t testing.TB, url, queue string) (stored []*message.Message) {
	t.Helper()
	ch, end, err := amqpChannel(url)
	require.NoError(t, err)
	defer end()
	info, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	deliveries, err := ch.Consume(queue, "", false, true, false, false, nil)
	require.NoError(t, err)
	for range info.Messages {
		select {
		case d := <-deliveries:
			msg, err := amqp.Marshaler{}.Unmarshal(d)
			require.NoError(t, err)
			stored = append(stored, msg)
		case <-time.After(patience):
			t.Fatalf("%d of %d messages came out of %s", len(stored), info.Messages, queue)
		}
	}
	return stored
}

func amqpPublisher(url string) (*amqp.Publisher, error) {
	return amqp.NewPublisher(amqp.PublisherConfig{
		Config: wmamqp.NewDurableQueueConfig(url), AckTimeout: 3 * time.Second,
	}, nil)
}

// watermill-amqp's subscriber reads exactly the published messages, also through an exchange with its own name.
func TestRabbitMQReachesWatermillsSubscriber(t *testing.T) {
	extended(t)
	server := sharedRabbitMQ(t)
	for name, cfg := range map[string]wmamqp.Config{
		"queue":  wmamqp.NewDurableQueueConfig(server.URL()),
		"pubsub": wmamqp.NewDurablePubSubConfig(server.URL(), wmamqp.GenerateQueueNameTopicNameWithSuffix("reports")),
	} {
		t.Run(name, func(t *testing.T) {
			sub, err := wmamqp.NewSubscriber(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			defer func() { require.NoError(t, sub.Close()) }()
			topic := "orders-" + watermill.NewShortUUID()
			got, err := sub.Subscribe(t.Context(), topic)
			require.NoError(t, err)
			cfg.TopologyBuilder = nil // watermill-amqp documents a default
			pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: cfg}, nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, pub.Close()) }()
			sent := message.NewMessage(watermill.NewUUID(), []byte("7"))
			sent.Metadata.Set(outbox.MetadataKey, "customer-1")
			require.NoError(t, pub.Publish(topic, sent))
			msg := receive(t, got)
			require.Equal(t, sent.UUID, msg.UUID)
			require.Equal(t, "7", string(msg.Payload))
			require.Equal(t, "customer-1", msg.Metadata.Get(outbox.MetadataKey))
			msg.Ack()
		})
	}
}

// TestRabbitMQRefuses fills a queue that rejects further messages, and publishes messages larger than the server allows
// among others.
func TestRabbitMQRefuses(t *testing.T) {
	extended(t)
	server := sharedRabbitMQ(t)
	pub, err := amqpPublisher(server.URL())
	require.NoError(t, err)
	defer func() { require.NoError(t, pub.Close()) }()
	full := amqpQueue(t, server.URL(), amqp091.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	publish := func() error { return pub.Publish(full, message.NewMessage(watermill.NewUUID(), nil)) }
	require.NoError(t, publish())
	require.Eventually(t, func() bool {
		err := publish()
		return err != nil && strings.Contains(err.Error(), "refused by the broker: check the limits")
	}, patience, time.Millisecond)

	queue := amqpQueue(t, server.URL(), nil)
	var callers sync.WaitGroup
	for range 32 {
		callers.Go(func() {
			for i := range 20 {
				msg := message.NewMessage(watermill.NewUUID(), make([]byte, largestOfRabbitMQ+i/19)) // the last is too large
				if err := pub.Publish(queue, msg); len(msg.Payload) == largestOfRabbitMQ {
					assert.NoError(t, err)
				} else if assert.ErrorContains(t, err, "larger than configured max size") {
					assert.Equal(t, permanent, verdictOf(err))
				}
			}
		})
	}
	callers.Wait()
}

// anyTopology declares an exchange of the type that the topic's name begins with, or returns an error of its own.
type anyTopology struct{ wmamqp.DefaultTopologyBuilder }

func (a *anyTopology) ExchangeDeclare(ch *amqp091.Channel, name string, cfg wmamqp.Config) error {
	cfg.Exchange.Type, _, _ = strings.Cut(name, ".")
	if cfg.Exchange.Type == "none" {
		return errors.New("not today")
	}
	return a.DefaultTopologyBuilder.ExchangeDeclare(ch, name, cfg)
}

// TestRabbitMQRefusesAnExchange: a wrong configuration is not a message's fault, and other topics go on.
func TestRabbitMQRefusesAnExchange(t *testing.T) {
	extended(t)
	server := sharedRabbitMQ(t)
	ch, end, err := amqpChannel(server.URL())
	require.NoError(t, err)
	defer end()
	require.NoError(t, ch.ExchangeDeclare("fanout.conflict", "direct", true, false, false, false, nil))
	cfg := wmamqp.NewDurablePubSubConfig(server.URL(), nil)
	cfg.TopologyBuilder, cfg.Connection.AmqpConfig = &anyTopology{}, &amqp091.Config{ChannelMax: 4}
	pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: cfg, AllowUnroutable: true}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, pub.Close()) }()
	publish := func(topic string) error { return pub.Publish(topic, message.NewMessage(watermill.NewUUID(), nil)) }

	for range 10 {
		for _, topic := range []string{"fanout.conflict", "none.exchange"} {
			err := publish(topic)
			require.ErrorContains(t, err, "cannot declare the exchange")
			require.Equal(t, unavailable, verdictOf(err), "%v", err)
		}
		require.NoError(t, publish("fanout.good"))
	}

	// RabbitMQ closes the connection for an unknown type, which fails all messages in flight.
	failed := make(chan error, 64)
	for range cap(failed) {
		go func() {
			for {
				if err := publish("fanout.good"); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	for n := 0; n < cap(failed); {
		select {
		case err := <-failed:
			require.Equal(t, unavailable, verdictOf(err), "%v", err)
			n++
		default:
			err := publish("unknown.exchange")
			require.Equal(t, unavailable, verdictOf(err), "%v", err)
		}
	}
}

// TestRabbitMQThatConfirmsNothing: an operator must not look for a lost connection.
func TestRabbitMQThatConfirmsNothing(t *testing.T) {
	extended(t)
	server := sharedRabbitMQ(t)
	proxy := newProxy(t, server.URL())
	pub, err := amqpPublisher(proxy.url)
	require.NoError(t, err)
	defer func() { require.NoError(t, pub.Close()) }()
	queue := amqpQueue(t, server.URL(), nil)
	publish := func() error { return pub.Publish(queue, message.NewMessage(watermill.NewUUID(), nil)) }
	require.NoError(t, publish())
	proxy.freeze()
	err = publish()
	require.ErrorContains(t, err, "no confirm from the broker within AckTimeout")
	require.Equal(t, unavailable, verdictOf(err))
	proxy.thaw()
	eventually(t, func() bool { return publish() == nil }, "it publishes again")
}

// TestRabbitMQWithMoreTopicsThanChannels publishes to more topics than the connection may have channels, and to as many
// concurrently.
func TestRabbitMQWithMoreTopicsThanChannels(t *testing.T) {
	extended(t)
	server := sharedRabbitMQ(t)
	const channels, topics = 4, 20
	cfg := wmamqp.NewDurableQueueConfig(server.URL())
	cfg.Connection.AmqpConfig = &amqp091.Config{ChannelMax: channels}
	pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: cfg}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, pub.Close()) }()
	queues := make([]string, topics)
	for i := range queues {
		queues[i] = amqpQueue(t, server.URL(), nil)
	}
	const rounds = 3
	var callers sync.WaitGroup
	for caller := range channels {
		callers.Go(func() {
			for range rounds {
				for i := range queues {
					topic := queues[(i+caller*topics/channels)%topics]
					assert.NoError(t, pub.Publish(topic, message.NewMessage(watermill.NewUUID(), nil)))
				}
			}
		})
	}
	callers.Wait()
	for _, queue := range queues {
		require.Len(t, amqpStored(t, server.URL(), queue), rounds*channels)
	}
}
