package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

// TestService sends orders, each twice, and one that is not JSON, to the service.
func TestService(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all has it: RabbitMQ takes 15 s to start")
	}
	broker, err := services.StartRabbitMQ(t.Context(), services.Options{Log: io.Discard})
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip("no RabbitMQ on this machine: this test did not run")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	postgres, err := services.StartPostgres(t.Context(), services.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	url, err := postgres.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	queues := wmamqp.NewDurableQueueConfig(broker.URL())
	sub, err := wmamqp.NewSubscriber(queues, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	next := func(topic string) func() string {
		msgs, err := sub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		return func() string {
			t.Helper()
			select {
			case msg := <-msgs:
				msg.Ack()
				return string(msg.Payload)
			case <-time.After(time.Minute):
				t.Fatal("nothing arrived within a minute: " + topic)
				return ""
			}
		}
	}
	if err := sub.SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	booked, deadLetter := next("bookings"), next("dead_letters")
	stop := demotest.Start(t, "DATABASE_URL="+url, "AMQP_URL="+broker.URL())
	defer stop()
	pub, err := amqp.NewPublisher(amqp.PublisherConfig{Config: queues}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	var got, want []string
	for i := range 20 {
		id := fmt.Sprintf("%d", i%10)
		if i < 10 {
			want = append(want, id)
		}
		if err := pub.Publish("orders", message.NewMessage(id, []byte(`{"id":"`+id+`"}`))); err != nil {
			t.Fatal(err)
		}
	}
	if err := pub.Publish("orders", message.NewMessage("unreadable", []byte("no JSON"))); err != nil {
		t.Fatal(err)
	}
	for range want {
		got = append(got, booked())
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("booked %v and not %v", got, want)
	}
	if got := deadLetter(); got != "no JSON" {
		t.Errorf("the dead letter is %q", got)
	}
}
