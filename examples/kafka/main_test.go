package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/kafka"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

// TestService sends two orders, one of them twice, and a message that is not an order, to a service that is started
// twice.
func TestService(t *testing.T) {
	server, err := services.StartKafka(t.Context(), services.Options{Log: io.Discard, QuickStart: true})
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip("no Java or Maven on this machine: this test did not run")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	postgres, err := services.StartPostgres(t.Context(), services.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	url, err := postgres.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	broker, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: server.Brokers()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	send := func(id, payload string) {
		t.Helper()
		msg := message.NewMessage(id, []byte(payload))
		outbox.SetKey(msg, "customer-1")
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) { // waits for the topic
			err := broker.Publish("orders", msg)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	published := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var bookings, deadLetters int
			_ = pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE topic = 'bookings'),
				count(*) FILTER (WHERE topic = 'dead_letters') FROM outbox WHERE published_at IS NOT NULL`).
				Scan(&bookings, &deadLetters)
			if bookings == want && deadLetters == 1 {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d bookings and %d dead letters were published, not %d and 1", bookings, deadLetters, want)
			}
		}
	}
	for i, order := range []string{"order-1", "order-2"} {
		stop := demotest.Start(t, "DATABASE_URL="+url, "KAFKA_BROKERS="+strings.Join(server.Brokers(), ","))
		send("order-1", `{"ID": "order-1"}`)
		if i == 0 {
			send("strange", "no order")
		}
		send(order, `{"ID": "`+order+`"}`)
		published(i + 1)
		stop()
	}
	var booked int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM bookings`).Scan(&booked); err != nil || booked != 2 {
		t.Errorf("%d orders are booked: %v", booked, err)
	}
}
