// Command rabbitmq is a complete service on RabbitMQ: it books each order once and publishes an event for it. Start it
// several times: the processes share the orders.
//
//	DATABASE_URL=postgres://me:secret@localhost/shop AMQP_URL=amqp://guest:guest@localhost:5672/ go run ./rabbitmq
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/forwarder"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := watermill.NewSlogLogger(nil)
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	db := must(outbox.FromPgx(pool, outbox.DBConfig{}, logger))
	must(schema.Migrate(ctx, db, schema.MigrateConfig{}))
	must(pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bookings (order_id text PRIMARY KEY)`))

	// In: your Router, with the middlewares around its handlers. A topic is a durable queue.
	queues := wmamqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	orders := must(wmamqp.NewSubscriber(queues, logger))
	for _, topic := range []string{"orders", "bookings", "dead_letters"} {
		must(0, orders.SubscribeInitialize(topic)) // a message without a queue stays in the outbox
	}
	events := must(outbox.NewPublisher(db, outbox.PublisherConfig{}, logger))
	router := must(message.NewRouter(message.RouterConfig{}, logger))
	router.AddMiddleware(must(outboxmw.Stack(events, outboxmw.StackConfig{Service: "booking"}, logger))...)
	router.AddHandler("book", "orders", orders, "bookings", events, book)

	// Out: the forwarder publishes what the handlers committed.
	broker := must(amqp.NewPublisher(amqp.PublisherConfig{Config: queues}, logger))
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
