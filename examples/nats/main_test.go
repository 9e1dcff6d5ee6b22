package main

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/examples/internal/demotest"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

func TestMain(m *testing.M) { demotest.Services(m, main) }

// TestService sends orders, each twice, and an unreadable one, to a service that is started twice.
func TestService(t *testing.T) {
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
	for _, topic := range []string{"orders", "bookings", "dead_letters"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: topic, Subjects: []string{topic}, Discard: jetstream.DiscardNew, Duplicates: 10 * time.Minute,
		}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(stream string) func() string {
		consumer, err := js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return func() string {
			t.Helper()
			msg, err := consumer.Next(jetstream.FetchMaxWait(5 * time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			return string(msg.Data())
		}
	}
	booked, deadLetter := next("bookings"), next("dead_letters")
	for _, start := range []string{"1", "2"} {
		stop := demotest.Start(t, "DATABASE_URL="+url, "NATS_URL="+broker.URL())
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
		if got := deadLetter(); got != "no JSON "+start {
			t.Errorf("the dead letter is %q", got)
		}
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
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
	}
	stream, err := js.Stream(t.Context(), "bookings")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 20 {
		t.Errorf("%d bookings were published", n)
	}
}
