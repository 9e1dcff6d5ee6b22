package integration_test

import (
	"bytes"
	"testing"
	"time"

	goamqp "github.com/Azure/go-amqp"
	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	ceamqp "github.com/cloudevents/sdk-go/protocol/amqp/v2"
	cekafka "github.com/cloudevents/sdk-go/protocol/kafka_sarama/v2"
	cenats "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	ce "github.com/cloudevents/sdk-go/v2/event"
	natsgo "github.com/nats-io/nats.go"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
)

var occurred = time.Date(2026, 7, 1, 12, 30, 0, 123456789, time.UTC)

// placedEvent returns one of our events.
func placedEvent() *message.Message {
	msg := newMessage(`{"order":"größe"}`)
	outbox.SetEvent(msg, "com.example.OrderPlaced", 2, occurred)
	outbox.SetAggregate(msg, "order", "4711")
	msg.Metadata.Set("ce_subject", "orders/4711")
	msg.Metadata.Set("ce_id", "of another message whose metadata were copied")
	return msg
}

// isPlacedEvent asserts that the official SDK reads the event of placedEvent.
func isPlacedEvent(t *testing.T, msg *message.Message, received binding.Message) {
	t.Helper()
	require.Equal(t, binding.EncodingBinary, received.ReadEncoding())
	e, err := binding.ToEvent(t.Context(), received)
	require.NoError(t, err)
	require.NoError(t, e.Validate())
	assert.Equal(t, msg.UUID, e.ID())
	assert.Equal(t, "com.example.OrderPlaced", e.Type())
	assert.Equal(t, "/orders", e.Source())
	assert.Equal(t, "orders/4711", e.Subject())
	assert.True(t, occurred.Equal(e.Time()), e.Time())
	assert.Equal(t, "application/json", e.DataContentType())
	assert.Equal(t, string(msg.Payload), string(e.Data()))
}

// shippedEvent returns an event sent by the official SDK.
func shippedEvent(t *testing.T) *ce.Event {
	t.Helper()
	e := ce.New()
	e.SetID("id of the SDK")
	e.SetType("com.example.OrderShipped")
	e.SetSource("https://example.com/shipping")
	e.SetTime(occurred)
	e.SetExtension("tenant", "t1")
	require.NoError(t, e.SetData("text/plain", []byte("4711")))
	return &e
}

func isShippedEvent(t *testing.T, msg *message.Message) {
	t.Helper()
	assert.Equal(t, "id of the SDK", msg.UUID)
	assert.Equal(t, "4711", string(msg.Payload))
	for key, want := range map[string]string{
		outbox.MetadataEventType: "com.example.OrderShipped", outbox.MetadataOccurredAt: occurred.Format(time.RFC3339Nano),
		"ce_source": "https://example.com/shipping", "ce_tenant": "t1", "content-type": "text/plain",
	} {
		assert.Equal(t, want, msg.Metadata[key], key)
	}
	assert.NotContains(t, msg.Metadata, "ce_id")
}

// isOurs asserts that got is the event of placedEvent, back from a broker.
func isOurs(t *testing.T, msg, got *message.Message) {
	t.Helper()
	assert.Equal(t, msg.UUID, got.UUID)
	assert.Equal(t, string(msg.Payload), string(got.Payload))
	for key, want := range msg.Metadata {
		if key == "ce_id" {
			continue
		}
		assert.Equal(t, want, got.Metadata[key], key)
	}
}

// publishesEvents publishes placedEvent. A message without a type is refused, and so was a marshaler without a Source.
func publishesEvents(t *testing.T, topic string, pub message.Publisher, err, withoutSource error) *message.Message {
	t.Helper()
	require.NoError(t, err)
	require.ErrorContains(t, withoutSource, "CloudEvents.Source")
	t.Cleanup(func() { assert.NoError(t, pub.Close()) })
	msg := placedEvent()
	require.NoError(t, pub.Publish(topic, msg))
	require.ErrorIs(t, pub.Publish(topic, newMessage("no type")), outbox.ErrInvalidMessage)
	return msg
}

// receivesEvents expects both events of a topic.
func receivesEvents(t *testing.T, topic string, sub message.Subscriber, err error, ours *message.Message) {
	t.Helper()
	require.NoError(t, err)
	defer sub.Close()
	in, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	for _, got := range take(t, in, 2) {
		if got.UUID == ours.UUID {
			isOurs(t, ours, got)
			continue
		}
		isShippedEvent(t, got)
	}
}

func TestCloudEventsKafka(t *testing.T) {
	t.Parallel()
	server := kafkaServer(t)
	topic := kafkaTopic(t, server, 1, nil)
	events := kafka.CloudEvents{Source: "/orders"}
	_, noSource := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: server.Brokers(), Marshaler: kafka.CloudEvents{},
	}, nil)
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: server.Brokers(), Marshaler: events}, nil)
	msg := publishesEvents(t, topic, pub, err, noSource)

	client, err := sarama.NewClient(server.Brokers(), sarama.NewConfig())
	require.NoError(t, err)
	consumer, err := sarama.NewConsumerFromClient(client)
	require.NoError(t, err)
	defer client.Close()
	records, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	require.NoError(t, err)
	record := within(t, "the event arrives", records.Messages())
	require.NoError(t, records.Close())
	assert.Equal(t, "order/4711", string(record.Key))
	isPlacedEvent(t, msg, cekafka.NewMessageFromConsumerMessage(record))

	sent := &sarama.ProducerMessage{Topic: topic}
	require.NoError(t, cekafka.WriteProducerMessage(t.Context(), (*binding.EventMessage)(shippedEvent(t)), sent))
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(server.Brokers(), cfg)
	require.NoError(t, err)
	_, _, err = producer.SendMessage(sent)
	require.NoError(t, err)
	require.NoError(t, producer.Close())

	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: wmkafka.SubscriberConfig{
		Brokers: server.Brokers(), ConsumerGroup: "g-" + watermill.NewShortUUID(), Unmarshaler: events,
	}}, nil)
	receivesEvents(t, topic, sub, err, msg)
	plain := consumeKafka(t, server, topic, 1)[0]
	assert.Equal(t, msg.UUID, plain.UUID, "consumers without CloudEvents see it unchanged")
}

func TestCloudEventsNATS(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	js, stream, prefix := natsStream(t, url, nil)
	events := nats.CloudEvents{Source: "/orders"}
	_, noSource := nats.NewPublisher(nats.PublisherConfig{URL: url, Marshaler: nats.CloudEvents{}}, nil)
	pub, err := nats.NewPublisher(nats.PublisherConfig{URL: url, AckTimeout: natsAckTimeout, Marshaler: events}, nil)
	msg := publishesEvents(t, prefix+"a", pub, err, noSource)

	stored, err := js.GetMsg(stream, 1)
	require.NoError(t, err)
	isPlacedEvent(t, msg, cenats.NewMessage(&natsgo.Msg{Header: stored.Header, Data: stored.Data}))

	var data bytes.Buffer
	header, err := cenats.WriteMsg(t.Context(), (*binding.EventMessage)(shippedEvent(t)), &data)
	require.NoError(t, err)
	_, err = js.PublishMsg(&natsgo.Msg{Subject: prefix + "a", Header: header, Data: data.Bytes()})
	require.NoError(t, err)

	sub, err := nats.NewSubscriber(nats.SubscriberConfig{
		URL: url, Consumer: "c-" + watermill.NewShortUUID(), Unmarshaler: events,
	}, nil)
	receivesEvents(t, prefix+"a", sub, err, msg)
}

// TestCloudEventsRabbitMQ: the SDK speaks AMQP 1.0. The test translates headers to application properties and back, as
// RabbitMQ 4 does; the plugin of RabbitMQ 3 drops them.
func TestCloudEventsRabbitMQ(t *testing.T) {
	extended(t)
	server := sharedRabbitMQ(t)
	queue := amqpQueue(t, server.URL(), nil)
	events := amqp.CloudEvents{Source: "/orders"}
	cfg := amqp.PublisherConfig{Config: wmamqp.NewDurableQueueConfig(server.URL())}
	cfg.Marshaler = amqp.CloudEvents{}
	_, noSource := amqp.NewPublisher(cfg, nil)
	cfg.Marshaler = events
	pub, err := amqp.NewPublisher(cfg, nil)
	msg := publishesEvents(t, queue, pub, err, noSource)

	ch, end, err := amqpChannel(server.URL())
	require.NoError(t, err)
	defer end()
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	delivery := within(t, "the event arrives", deliveries)
	contentType := goamqp.AMQPSymbol(delivery.ContentType)
	isPlacedEvent(t, msg, ceamqp.NewMessage(&goamqp.Message{
		Properties: &goamqp.MessageProperties{ContentType: &contentType}, Data: [][]byte{delivery.Body},
		ApplicationProperties: delivery.Headers,
	}, nil))
	got, err := events.Unmarshal(delivery)
	require.NoError(t, err)
	isOurs(t, msg, got)

	var sent goamqp.Message
	require.NoError(t, ceamqp.WriteMessage(t.Context(), (*binding.EventMessage)(shippedEvent(t)), &sent))
	got, err = events.Unmarshal(amqp091.Delivery{
		Headers: sent.ApplicationProperties, ContentType: string(*sent.Properties.ContentType), Body: sent.GetData(),
	})
	require.NoError(t, err)
	isShippedEvent(t, got)
}
