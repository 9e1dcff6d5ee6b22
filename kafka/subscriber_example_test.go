package kafka_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/kafka"
)

// It takes the same configuration as watermill-kafka's NewSubscriber.
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
	// Add middleware.Stack, which skips duplicates.
	router.AddConsumerHandler("book", "orders", orders, func(msg *message.Message) error {
		return nil
	})
	fmt.Println(len(router.Handlers()), "handler")
	// Output: 1 handler
}

// An error names the invalid field.
func ExampleNewSubscriber_mistake() {
	_, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		SubscriberConfig: wmkafka.SubscriberConfig{
			Brokers: []string{"localhost:9092"}, Unmarshaler: wmkafka.DefaultMarshaler{},
		},
	}, nil)
	fmt.Println(err)
	// Output: kafka: SubscriberConfig.ConsumerGroup is empty: the group records which messages are done: name the service and the handler
}
