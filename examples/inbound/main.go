// Command inbound is the smallest whole service: it consumes orders from NATS JetStream, books each once, and publishes
// what it booked.
//
//	DATABASE_URL=postgres://... NATS_URL=nats://... go run ./inbound
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/publisher/nats"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("NATS_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL, natsURL string) error {
	logger := watermill.NewSlogLogger(nil)
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		return err
	}
	if _, err := schema.Migrate(ctx, db, schema.MigrateConfig{}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bookings (order_id text PRIMARY KEY)`); err != nil {
		return err
	}
	if err := createStreams(ctx, natsURL); err != nil {
		return err
	}

	// Inbound: the Router, with the middlewares around its handlers.
	orders, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL:              natsURL,
		NatsOptions:      nats.Options(), // reconnect for ever
		SubscribersCount: 8,              // orders that are handled at once
		QueueGroupPrefix: "booking",
		JetStream:        wmnats.JetStreamConfig{DurablePrefix: "booking"},
	}, logger)
	if err != nil {
		return err
	}
	events, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	if err != nil {
		return err
	}
	stack, err := outboxmw.Stack(events, outboxmw.StackConfig{Service: "booking"}, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(stack...)
	router.AddHandler("book", "orders", orders, "bookings", events, book)

	// Outbound: a forwarder that publishes what was committed.
	broker, err := nats.NewPublisher(nats.PublisherConfig{URL: natsURL}, logger)
	if err != nil {
		return err
	}
	defer broker.Close()
	fwd, err := forwarder.New(db, broker, forwarder.Config{}, logger)
	if err != nil {
		return err
	}
	return outbox.Run(ctx, router, fwd)
}

// createStreams makes a stream for each topic, and the consumer of the orders: one that the subscriber made itself
// would be deleted when it unsubscribes, and with it the position.
func createStreams(ctx context.Context, url string) error {
	conn, err := natsgo.Connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for _, topic := range []string{"orders", "bookings", "dead_letters"} {
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: topic, Subjects: []string{topic},
		}); err != nil {
			return err
		}
	}
	if _, err := js.PushConsumer(ctx, "orders", "booking"); err == nil {
		return nil // where it delivers to must stay as it is
	}
	_, err = js.CreatePushConsumer(ctx, "orders", jetstream.ConsumerConfig{
		Durable: "booking", DeliverGroup: "booking", DeliverSubject: natsgo.NewInbox(),
		AckPolicy: jetstream.AckExplicitPolicy,
	})
	return err
}

// book is an ordinary handler. What it writes and what it returns commit together, once per order.
func book(msg *message.Message) ([]*message.Message, error) {
	tx, err := outbox.PgxTx(msg.Context())
	if err != nil {
		return nil, err
	}
	orderID := string(msg.Payload)
	if _, err := tx.Exec(msg.Context(), `INSERT INTO bookings (order_id) VALUES ($1)`, orderID); err != nil {
		return nil, err // rolled back and nacked; nothing was published
	}
	booked := message.NewMessage(watermill.NewUUID(), msg.Payload)
	outbox.SetAggregate(booked, "order", orderID) // events of one order leave in order
	return message.Messages{booked}, nil
}
