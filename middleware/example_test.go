package middleware_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
)

var (
	pool   *pgxpool.Pool
	logger watermill.LoggerAdapter = watermill.NopLogger{}
)

// The whole stack on a Router. Returned messages are written to the outbox in the handler's transaction, and a
// redelivered message is acked without calling it. The Router itself never publishes: AddHandler requires a Publisher,
// which provides the name of the publish topic.
func Example() {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	stack, err := middleware.Stack(pub, middleware.StackConfig{Service: "booking"}, logger)
	if err != nil {
		log.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, logger)
	router := message.NewDefaultRouter(logger)
	router.AddMiddleware(stack...)
	router.AddHandler("book-order", "orders", broker, "bookings", pub,
		func(msg *message.Message) ([]*message.Message, error) {
			fmt.Printf("book %s\n", msg.Payload) // SQL, in outbox.PgxTx(msg.Context())
			return message.Messages{message.NewMessage("booking-1", []byte("booked"))}, nil
		})
	go router.Run(context.Background())
	<-router.Running()

	for range 2 { // the broker delivers the message twice
		if err := broker.Publish("orders", message.NewMessage("order-1", []byte("table 7"))); err != nil {
			log.Fatal(err)
		}
	}
	if err := router.Close(); err != nil {
		log.Fatal(err)
	}
}

// Watermill's Retry and PoisonQueue, if any, are added before the stack.
func ExampleStack() {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router := message.NewDefaultRouter(logger)
	stack, err := middleware.Stack(pub, middleware.StackConfig{
		Service:      "billing",
		Except:       []string{"metrics"},
		ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: 20, DeadLetterTopic: "orders.dead"},
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddMiddleware(stack...)
}

// Many messages in one transaction: a projection that is written by one INSERT. In a program, add the handler to a
// Router, behind a subscriber with many messages in flight:
//
//	router.AddConsumerHandler("orders-report", "orders", sub, project)
func ExampleBatch() {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	project, err := middleware.Batch(db, middleware.BatchConfig{
		Service: "reports", Inbox: middleware.InboxConfig{Consumer: "orders"}, MaxMessages: 3, MaxWait: time.Minute,
	}, func(ctx context.Context, msgs []*message.Message) error {
		// INSERT INTO report SELECT * FROM unnest($1::text[], …), by outbox.PgxTx(ctx).
		fmt.Printf("%d messages in one transaction\n", len(msgs))
		return nil
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	var router sync.WaitGroup
	for i := range 3 {
		router.Go(func() {
			if err := project(message.NewMessage(fmt.Sprint("order-", i), nil)); err != nil {
				log.Fatal(err)
			}
		})
	}
	router.Wait()
}

// Tx alone, setting a tenant for row-level security.
func ExampleTx() {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router := message.NewDefaultRouter(logger)
	tx, err := middleware.Tx(db, middleware.TxConfig{
		Isolation: sql.LevelSerializable,
		OnBegin: func(ctx context.Context, msg *message.Message) error {
			tx, err := outbox.PgxTx(ctx)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "select set_config('app.tenant', $1, true)", msg.Metadata.Get("tenant"))
			return err
		},
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddMiddleware(tx)
}
