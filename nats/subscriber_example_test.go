package nats_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/nats"
)

func ExampleNewSubscriber() {
	orders, err := nats.NewSubscriber(nats.SubscriberConfig{
		URL:      "nats://localhost:4222",
		Consumer: "booking-orders",
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
