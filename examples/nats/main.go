// Command nats is a complete service on NATS JetStream: it books each order once and publishes an event for it. An
// order that keeps failing delays only later messages of its ordering key. Start it twice: the second process is on
// standby.
//
//	DATABASE_URL=postgres://me:secret@localhost/shop NATS_URL=nats://localhost:4222 go run ./nats
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"strings"
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
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger, url := watermill.NewSlogLogger(nil), os.Getenv("NATS_URL")
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	db := must(outbox.FromPgx(pool, outbox.DBConfig{}, logger))
	must(schema.Migrate(ctx, db, schema.MigrateConfig{}))
	must(pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bookings (order_id text PRIMARY KEY)`))
	conn, err := natsgo.Connect(url)
	if err != nil {
		log.Fatalf("connect to NATS at %s (NATS_URL): %v", url[strings.LastIndex(url, "@")+1:], err) // without a password
	}
	js := must(jetstream.New(conn))
	for _, topic := range []string{"orders", "bookings", "dead_letters"} {
		must(js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: topic, Subjects: []string{topic}, Discard: jetstream.DiscardNew, Duplicates: 10 * time.Minute,
		}))
	}

	// In: your Router, with the middlewares around its handlers. The subscriber creates its durable consumer.
	orders := must(nats.NewSubscriber(nats.SubscriberConfig{URL: url, Consumer: "booking"}, logger))
	events := must(outbox.NewPublisher(db, outbox.PublisherConfig{}, logger))
	router := must(message.NewRouter(message.RouterConfig{}, logger))
	router.AddMiddleware(must(outboxmw.Stack(events, outboxmw.StackConfig{Service: "booking"}, logger))...)
	router.AddHandler("book", "orders", orders, "bookings", events, book)

	// Out: the forwarder publishes what the handlers committed.
	broker := must(nats.NewPublisher(nats.PublisherConfig{URL: url}, logger))
	fwd := must(forwarder.New(db, broker, forwarder.Config{}, logger))
	must(0, outbox.Run(ctx, router, fwd))
}

// book is an ordinary handler. Its writes and the messages it returns commit together, once per order.
func book(msg *message.Message) ([]*message.Message, error) {
	var order struct{ ID string }
	if err := json.Unmarshal(msg.Payload, &order); err != nil {
		return nil, outbox.Poison(err) // a dead letter: redelivery won't make it valid JSON
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

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
