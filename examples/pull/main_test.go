package main

import (
	"context"
	"fmt"
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

// TestPull sends orders, each twice, and one that nobody can read, to a service that is started twice.
func TestPull(t *testing.T) {
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
	next := func(stream string) func() string {
		consumer, err := js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return func() string {
			t.Helper()
			msg, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			return string(msg.Data())
		}
	}
	booked, letter := next("bookings"), next("dead_letters")
	for _, start := range []string{"1", "2"} {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx, url, broker.URL()) }()
		var got, want []string
		for i := range 20 {
			id := fmt.Sprintf("%s-%d", start, i%10)
			order := fmt.Sprintf(`{"id":"%s"}`, id)
			msg := natsgo.NewMsg("orders")
			msg.Header.Set(wmnats.WatermillUUIDHdr, id)
			msg.Data = []byte(order)
			if _, err := js.PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
			if i < 10 {
				want = append(want, id)
			}
		}
		unreadable := natsgo.NewMsg("orders")
		unreadable.Header.Set(wmnats.WatermillUUIDHdr, "unreadable "+start)
		unreadable.Data = []byte("no JSON " + start)
		if _, err := js.PublishMsg(t.Context(), unreadable); err != nil {
			t.Fatal(err)
		}
		for range want {
			got = append(got, booked())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("booked %v and not %v", got, want)
		}
		if got := letter(); got != "no JSON "+start {
			t.Errorf("the letter is %q", got)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			consumer, err := js.Consumer(t.Context(), "orders", "booking-orders")
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
	stream, err := js.Stream(t.Context(), "bookings")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 20 {
		t.Errorf("%d bookings were published", n)
	}
}
