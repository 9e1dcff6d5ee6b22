package kafka_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/kafka"
)

// What was given to watermill-kafka's NewSubscriber is given to this one.
func ExampleNewSubscriber() {
	orders, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		SubscriberConfig: wmkafka.SubscriberConfig{
			Brokers:       []string{"localhost:9092"},
			ConsumerGroup: "booking",
			Unmarshaler:   wmkafka.DefaultMarshaler{},
		},
		Concurrency: 32,
	}, watermill.NewStdLogger(false, false))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = orders.Close() }()

	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	// Add middleware.Stack, which skips what is delivered twice.
	router.AddConsumerHandler("book", "orders", orders, func(msg *message.Message) error {
		return nil
	})
	fmt.Println(len(router.Handlers()), "handler")
	// Output: 1 handler
}

// A mistake in the config is named by its field.
func ExampleNewSubscriber_mistake() {
	_, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		SubscriberConfig: wmkafka.SubscriberConfig{
			Brokers: []string{"localhost:9092"}, Unmarshaler: wmkafka.DefaultMarshaler{},
		},
	}, nil)
	fmt.Println(err)
	// Output: kafka: SubscriberConfig.ConsumerGroup is empty: the group records which messages are done: name the service and the handler
}
