package main

import (
	"errors"
	"fmt"
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

// TestProjection sends 1000 orders of 50 customers, some of them twice, and a message that is not an order, to a
// service that is started twice.
func TestProjection(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all has it")
	}
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
	send := func(id, customer, payload string) {
		t.Helper()
		msg := message.NewMessage(id, []byte(payload))
		outbox.SetKey(msg, customer)
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) { // waits for the topic
			err := broker.Publish("paid_orders", msg)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	const orders, customers = 1000, 50
	for half := range 2 {
		stop := demotest.Start(t, "DATABASE_URL="+url, "KAFKA_BROKERS="+strings.Join(server.Brokers(), ","))
		send("strange", "nobody", "no order")
		for i := half * orders / 4; i < (half+1)*orders/2; i++ { // some are sent twice
			customer := fmt.Sprint("customer-", i%customers)
			send(fmt.Sprint("order-", i), customer, fmt.Sprintf(`{"Customer": %q, "Amount": %d}`, customer, i))
		}
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var counted, deadLetters int
			_ = pool.QueryRow(t.Context(), `SELECT coalesce(sum(orders), 0), (SELECT count(*) FROM outbox
				WHERE topic = 'dead_letters' AND published_at IS NOT NULL) FROM totals`).Scan(&counted, &deadLetters)
			if counted >= (half+1)*orders/2 && deadLetters == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d orders are counted, and %d dead letters published", counted, deadLetters)
			}
		}
		stop()
	}
	var rows, counted, amount int
	err = pool.QueryRow(t.Context(), `SELECT count(*), sum(orders), sum(amount) FROM totals`).Scan(&rows, &counted,
		&amount)
	if err != nil || rows != customers || counted != orders || amount != orders*(orders-1)/2 {
		t.Errorf("%d customers, %d orders, %d in all: %v", rows, counted, amount, err)
	}
}
