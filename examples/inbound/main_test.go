package main

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/services"
)

func TestMain(m *testing.M) { demotest.Services(m) }

// TestInbound sends two orders, one of them twice, to a service that is started twice.
func TestInbound(t *testing.T) {
	postgres, err := services.StartPostgres(t.Context(), services.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	broker, err := services.StartNATS(t.Context(), services.Options{Log: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	url, err := postgres.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := natsgo.Connect(broker.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := createStreams(t.Context(), broker.URL()); err != nil {
		t.Fatal(err)
	}
	send := func(order string) {
		t.Helper()
		msg := natsgo.NewMsg("orders")
		msg.Header.Set(wmnats.WatermillUUIDHdr, "uuid of "+order)
		msg.Data = []byte(order)
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	bookings, err := js.OrderedConsumer(t.Context(), "bookings", jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var booked []string
	for _, order := range []string{"order-1", "order-2"} {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, url, broker.URL()) }()
		send("order-1")
		send(order)
		msg, err := bookings.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		booked = append(booked, string(msg.Data()))
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			consumer, err := js.PushConsumer(t.Context(), "orders", "booking")
			if err != nil {
				t.Fatal(err)
			}
			if info := consumer.CachedInfo(); info.NumPending == 0 && info.NumAckPending == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("an order is not acknowledged")
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"order-1", "order-2"}; !slices.Equal(booked, want) {
		t.Errorf("booked %v and not %v", booked, want)
	}
	stream, err := js.Stream(t.Context(), "bookings")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("%d bookings were published", n)
	}
}
