package outboxtest_test

import (
	"context"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

var t *testing.T // your own

// book is a handler as users write it.
func book(msg *message.Message) ([]*message.Message, error) {
	tx, err := outbox.PgxTx(msg.Context())
	if err != nil {
		return nil, err
	}
	_, err = tx.Exec(msg.Context(), "INSERT INTO bookings VALUES ($1)", string(msg.Payload))
	return message.Messages{message.NewMessage("booking-1", []byte("booked"))}, err
}

// A handler inside all middlewares. The second delivery of a message is a duplicate.
func ExampleHandle() {
	db, pool := outboxtest.NewPostgres(t, os.Getenv("TEST_DATABASE_URL"))
	if _, err := pool.Exec(t.Context(), "CREATE TABLE bookings (id text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	order := message.NewMessage("order-1", []byte("table 7"))
	for delivery := range 2 {
		got, err := outboxtest.Handle(t, db, book, order, middleware.StackConfig{Service: "booking"})
		if err != nil || !got.Acked || len(got.Published) != 1-delivery {
			t.Fatal(got, err)
		}
	}
}

// Code that publishes in a transaction: Drain returns the messages that a forwarder would publish after the commit.
func ExampleDrain() {
	db, _ := outboxtest.NewPostgres(t, os.Getenv("TEST_DATABASE_URL"))
	events, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = outbox.InTx(t.Context(), db, func(ctx context.Context) error {
		return events.PublishContext(ctx, "orders", message.NewMessage("1", []byte("placed")))
	})
	if err != nil {
		t.Fatal(err)
	}
	if sent := outboxtest.Drain(t, db); len(sent) != 1 || sent[0].Topic != "orders" {
		t.Error(sent)
	}
}
