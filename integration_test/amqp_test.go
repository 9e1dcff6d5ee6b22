package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/internal/services"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

// rabbitMQ starts a server of the test's own. Where the machine has none it skips the test, except in CI.
func rabbitMQ(t testing.TB) *services.RabbitMQ {
	t.Helper()
	server, err := services.StartRabbitMQ(t.Context(), services.Options{})
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip("no RabbitMQ on this machine: this test did not run")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// amqpChannel opens a channel that is closed with the test, or earlier with its server.
func amqpChannel(t testing.TB, url string) *amqp091.Channel {
	t.Helper()
	conn, err := amqp091.DialConfig(url, amqp091.Config{Dial: amqp091.DefaultDial(patience)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

// amqpQueue makes a durable queue, which watermill-amqp's queue configuration takes for a topic.
func amqpQueue(t testing.TB, url string, args amqp091.Table) string {
	t.Helper()
	name := "q-" + watermill.NewShortUUID()
	_, err := amqpChannel(t, url).QueueDeclare(name, true, false, false, false, args)
	require.NoError(t, err)
	return name
}

// amqpStored reads what a queue has, and leaves it there.
func amqpStored(t testing.TB, url, queue string) (stored []*message.Message) {
	t.Helper()
	conn, err := amqp091.DialConfig(url, amqp091.Config{Dial: amqp091.DefaultDial(patience)})
	require.NoError(t, err)
	defer conn.Close() // hands back all that is not acked
	ch, err := conn.Channel()
	require.NoError(t, err)
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

func TestRabbitMQPublisher(t *testing.T) {
	extended(t)
	server := rabbitMQ(t)
	// A server that is killed forgets queues that were declared in the moment before. Subscribers declare them again when
	// they connect, and so does restart. If messages were lost with a queue, they are missed all the same.
	var queues []string
	restart := func() error {
		if err := server.Restart(context.Background()); err != nil {
			return err
		}
		conn, err := amqp091.Dial(server.URL())
		if err != nil {
			return err
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		for _, queue := range queues {
			if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
				return err
			}
		}
		return nil
	}
	outboxtest.TestPublisher(t, func() (message.Publisher, error) { return amqpPublisher(server.URL()) }, outboxtest.Broker{
		NewTopic: func(t testing.TB) string {
			queues = append(queues, amqpQueue(t, server.URL(), nil))
			return queues[len(queues)-1]
		},
		Stored: func(t testing.TB, topic string) []*message.Message {
			return amqpStored(t, server.URL(), topic)
		},
		Kill: server.Kill, Restart: restart,
		Freeze: server.Freeze, Thaw: server.Thaw,
		Missing: "nowhere",
		Poison: func() *message.Message {
			msg := message.NewMessage(watermill.NewUUID(), nil)
			msg.Metadata.Set(string(make([]byte, 300)), "no AMQP header has such a long name")
			return msg
		},
		Kills: 10,
	})
}

// What watermill-amqp's subscriber reads is what was published, also through an exchange with its own name.
func TestRabbitMQReachesWatermillsSubscriber(t *testing.T) {
	extended(t)
	server := rabbitMQ(t)
	for name, cfg := range map[string]wmamqp.Config{
		"queue":  wmamqp.NewDurableQueueConfig(server.URL()),
		"pubsub": wmamqp.NewDurablePubSubConfig(server.URL(), wmamqp.GenerateQueueNameTopicNameWithSuffix("reports")),
	} {
		t.Run(name, func(t *testing.T) {
			sub, err := wmamqp.NewSubscriber(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			defer func() { require.NoError(t, sub.Close()) }()
			got, err := sub.Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: cfg}, nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, pub.Close()) }()
			sent := message.NewMessage(watermill.NewUUID(), []byte("7"))
			sent.Metadata.Set(outbox.MetadataKey, "customer-1")
			require.NoError(t, pub.Publish("orders", sent))
			msg := receive(t, got)
			require.Equal(t, sent.UUID, msg.UUID)
			require.Equal(t, "7", string(msg.Payload))
			require.Equal(t, "customer-1", msg.Metadata.Get(outbox.MetadataKey))
			msg.Ack()
		})
	}
}

// A queue that is full and refuses more, and a size that the server refuses.
func TestRabbitMQRefuses(t *testing.T) {
	extended(t)
	server := rabbitMQ(t)
	pub, err := amqpPublisher(server.URL())
	require.NoError(t, err)
	defer func() { require.NoError(t, pub.Close()) }()
	full := amqpQueue(t, server.URL(), amqp091.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	publish := func() error { return pub.Publish(full, message.NewMessage(watermill.NewUUID(), nil)) }
	require.NoError(t, publish())
	require.Eventually(t, func() bool { return errors.Is(publish(), amqp.ErrNack) }, patience, time.Millisecond)
	require.NoError(t, pub.Publish(amqpQueue(t, server.URL(), nil), message.NewMessage(watermill.NewUUID(), nil)))
}
