// Command kafka is a complete service on Kafka: it books each order once and publishes an event for it. An order that
// keeps failing delays only later messages with its Kafka key. Start it several times: the processes share the
// partitions.
//
//	DATABASE_URL=postgres://me:secret@localhost/shop?pool_max_conns=20 KAFKA_BROKERS=localhost:9092 go run ./kafka
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/kafka"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := watermill.NewSlogLogger(nil)
	brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	db := must(outbox.FromPgx(pool, outbox.DBConfig{}, logger))
	must(schema.Migrate(ctx, db, schema.MigrateConfig{}))
	must(pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS bookings (order_id text PRIMARY KEY)`))

	// In: your Router, with the middlewares around its handlers.
	orders := must(kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: wmkafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: "booking", Unmarshaler: wmkafka.DefaultMarshaler{},
		InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 8, ReplicationFactor: 1},
	}}, logger))
	for _, topic := range []string{"orders", "bookings", "dead_letters"} {
		must(0, orders.SubscribeInitialize(topic))
	}
	events := must(outbox.NewPublisher(db, outbox.PublisherConfig{}, logger))
	router := must(message.NewRouter(message.RouterConfig{}, logger))
	router.AddMiddleware(must(outboxmw.Stack(events, outboxmw.StackConfig{Service: "booking"}, logger))...)
	router.AddHandler("book", "orders", orders, "bookings", events, book)

	// Out: the forwarder publishes what the handlers committed.
	broker := must(kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers}, logger))
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
	outbox.SetAggregate(booked, "order", order.ID) // events of one order keep their order
	return message.Messages{booked}, nil
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
