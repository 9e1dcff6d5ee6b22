// Command pull is a service on a durable pull consumer of NATS JetStream, read by key: it books orders, each once, and
// publishes what it booked. Start it twice: the second process is on standby.
//
//	DATABASE_URL=postgres://... NATS_URL=nats://... go run ./pull
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/publisher/nats"
	"github.com/millrace-go/watermill-outbox/schema"
	inbound "github.com/millrace-go/watermill-outbox/publisher/nats"
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
	orders, err := inbound.NewSubscriber(inbound.SubscriberConfig{
		URL: natsURL, Consumer: "booking",
		Concurrency: 8, // orders that are handled at once
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

// createStreams makes a stream for each topic. The subscriber creates its consumer itself, which outlives it.
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
			Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew, Duplicates: 10 * time.Minute,
		}); err != nil {
			return err
		}
	}
	return nil
}

// book is an ordinary handler. What it writes and what it returns commit together, once per order.
func book(msg *message.Message) ([]*message.Message, error) {
	var order struct{ ID string }
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return nil, outbox.Poison(err) // a dead letter: no redelivery makes JSON of it
	}
	tx, err := outbox.PgxTx(msg.Context())
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(msg.Context(), `INSERT INTO bookings (order_id) VALUES ($1)`, order.ID); err != nil {
		return nil, err // rolled back, and redelivered
	}
	booked := message.NewMessage(watermill.NewUUID(), []byte(order.ID))
	outbox.SetAggregate(booked, "order", order.ID)
	return message.Messages{booked}, nil
}
