package outboxtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

// Orders is where the service keeps its orders: a table, reached with outbox.PgxTx. In a test it is a map.
type Orders interface {
	Book(ctx context.Context, id string) error
}

// Booking is a service as its users write it.
type Booking struct{ Orders Orders }

var errNoOrder = errors.New("there is no order in it")

// Handle books an order and says so.
func (b Booking) Handle(msg *message.Message) ([]*message.Message, error) {
	if len(msg.Payload) == 0 {
		return nil, outbox.Poison(errNoOrder)
	}
	if err := b.Orders.Book(msg.Context(), string(msg.Payload)); err != nil {
		return nil, err
	}
	return message.Messages{message.NewMessage(watermill.NewUUID(), []byte("booked "+string(msg.Payload)))}, nil
}

type orders map[string]int

func (o orders) Book(_ context.Context, id string) error {
	o[id]++
	return nil
}

func TestBooking(t *testing.T) {
	db, booked := outboxtest.NewDB(t), orders{}
	booking := Booking{Orders: booked}
	order := message.NewMessage("order-1", []byte("table 7"))
	for delivery := range 2 { // the broker delivers it twice
		got, err := outboxtest.Handle(t, db, booking.Handle, order, outboxmw.StackConfig{})
		if err != nil || !got.Acked || len(got.Published) != 1-delivery {
			t.Fatal(got, err)
		}
	}
	if events := outboxtest.Drain(t, db); booked["table 7"] != 1 || string(events[0].Payload) != "booked table 7" {
		t.Error(booked, events)
	}
}

func TestReminder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time passes at once in it
		db := outboxtest.NewDB(t)
		reminders, err := outbox.NewPublisher(db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		if err != nil {
			t.Fatal(err)
		}
		reminder := message.NewMessage(watermill.NewUUID(), []byte("pay by tomorrow"))
		outbox.SetDelay(reminder, 24*time.Hour)
		if err := reminders.Publish("reminders", reminder); err != nil {
			t.Fatal(err)
		}
		if early := outboxtest.Drain(t, db); len(early) != 0 {
			t.Error("it leaves before its time")
		}
		time.Sleep(24 * time.Hour)
		if due := outboxtest.Drain(t, db); len(due) != 1 {
			t.Error("it does not leave")
		}
	})
}
