// Command inbound is a whole service on Kafka, read by key: it books orders, each once, and publishes what it booked.
// An order that keeps failing delays only the later orders of its customer, until MaxAhead messages wait behind it. Start it several times: the processes share the partitions.
//
//	DATABASE_URL=postgres://... KAFKA_BROKERS=localhost:9092 go run ./inbound
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
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/publisher/kafka"
	"github.com/millrace-go/watermill-outbox/schema"
	inbound "github.com/millrace-go/watermill-outbox/subscriber/kafka"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	if err := run(ctx, os.Getenv("DATABASE_URL"), brokers); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL string, brokers []string) error {
	logger := watermill.NewSlogLogger(nil)
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return err
	}
	cfg.MaxConns = 20 // one for each of 16 handlers, and some for the forwarder
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
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

	// Inbound: the Router, with the middlewares around its handlers.
	orders, err := inbound.NewSubscriber(inbound.SubscriberConfig{
		SubscriberConfig: wmkafka.SubscriberConfig{
			Brokers: brokers, ConsumerGroup: "booking", Unmarshaler: wmkafka.DefaultMarshaler{},
			InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 8, ReplicationFactor: 1},
		},
	}, logger)
	if err != nil {
		return err
	}
	for _, topic := range []string{"orders", "bookings", "dead_letters"} {
		if err := orders.SubscribeInitialize(topic); err != nil {
			return err
		}
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
	broker, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers}, logger)
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
	outbox.SetAggregate(booked, "order", order.ID) // events of one order keep their order
	return message.Messages{booked}, nil
}
