package outboxtest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

// A handler, with all that the middlewares do around it. The second delivery of a message finds it handled.
func ExampleHandle() {
	db, booked := outboxtest.NewDB(t), orders{}
	order := message.NewMessage("order-1", []byte("book"))
	for range 2 {
		got, err := outboxtest.Handle(t, db, Booking{booked}.Handle, order, middleware.StackConfig{Service: "booking"})
		fmt.Println(got.Acked, err, len(got.Published), booked["book"])
	}
	for _, msg := range outboxtest.Drain(t, db) {
		fmt.Printf("%s: %s, caused by %s\n", msg.Topic, msg.Payload, msg.Metadata.Get(outbox.MetadataCausationID))
	}
	// Output:
	// true <nil> 1 1
	// true <nil> 0 1
	// published: booked book, caused by order-1
}

// A message that can never be handled is acked, and published to the dead-letter topic.
func ExampleHandle_poison() {
	db := outboxtest.NewDB(t)
	got, err := outboxtest.Handle(t, db, Booking{orders{}}.Handle, message.NewMessage("order-2", nil),
		middleware.StackConfig{})
	fmt.Println(got.Acked, err)
	fmt.Println(got.Published[0].Topic, got.Published[0].Metadata.Get(middleware.MetadataReason))
	// Output:
	// true <nil>
	// dead_letters poison message: there is no order in it
}

// Code that publishes in a transaction: what was written in it, and that nothing of it is left when it is rolled back.
func ExampleWritten() {
	db := outboxtest.NewDB(t)
	events, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = outbox.InTx(context.Background(), db, func(ctx context.Context) error {
		if err := events.PublishContext(ctx, "orders", message.NewMessage("1", []byte("placed"))); err != nil {
			return err
		}
		for _, msg := range outboxtest.Written(t, ctx) {
			fmt.Printf("%s: %s\n", msg.Topic, msg.Payload)
		}
		return errors.New("the card was refused")
	})
	fmt.Println(err, len(outboxtest.Drain(t, db)))
	// Output:
	// orders: placed
	// the card was refused 0
}
