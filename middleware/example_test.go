package middleware_test

import (
	"context"
	"database/sql"
	"errors"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
)

var (
	pool       *pgxpool.Pool
	subscriber message.Subscriber
	logger     watermill.LoggerAdapter = watermill.NopLogger{}
	errBadJSON                         = errors.New("bad JSON")
)

func bookOrder(msg *message.Message) ([]*message.Message, error) {
	if len(msg.Payload) == 0 {
		return nil, outbox.Poison(errBadJSON)
	}
	tx, err := outbox.PgxTx(msg.Context())
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(msg.Context(), "insert into orders (id) values ($1)", msg.UUID); err != nil {
		return nil, err
	}
	return message.Messages{message.NewMessage(watermill.NewUUID(), []byte("booked"))}, nil
}

// The whole stack on a Router. The Router never publishes by itself: Publisher is only there because
// AddHandler asks for one, and gives the publish topic its name.
func Example() {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router := message.NewDefaultRouter(logger)
	stack, err := middleware.Stack(pub, middleware.StackConfig{Service: "booking"}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddMiddleware(stack...)
	router.AddHandler("book-order", "orders", subscriber, "bookings", pub, bookOrder)
	if err := router.Run(context.Background()); err != nil {
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
		Service:  "billing",
		Except:   []string{"metrics"},
		Outcomes: middleware.OutcomesConfig{MaxAttempts: 20, DeadLetterTopic: "orders.dead"},
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddMiddleware(stack...)
}

// Tx alone, with a tenant for row-level security.
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
