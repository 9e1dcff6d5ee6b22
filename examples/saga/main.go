// Command saga books orders in steps that must all succeed or be undone: a payment is taken, then stock is reserved,
// and if the item is sold out or the time limit expires, the payment is returned. Each step is a transaction with the
// saga's state, its writes and the message of the next step, so that no step is lost or done twice, wherever the
// process dies.
//
//	DATABASE_URL=postgres://... go run ./saga order-1 book 42
//
// All messages go through the outbox of one database and come back from it. If the participants are separate services,
// a forwarder and a broker stand in between; the steps stay as they are.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/schema"
)

const tables = `
CREATE TABLE IF NOT EXISTS sagas (
	order_id text PRIMARY KEY, item text NOT NULL, amount bigint NOT NULL, state text NOT NULL);
CREATE TABLE IF NOT EXISTS payments (
	order_id text PRIMARY KEY, amount bigint NOT NULL, returned bool NOT NULL DEFAULT false);
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, in_stock int NOT NULL CHECK (in_stock >= 0))`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), 30*time.Minute, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run places the order in args, if there is one, and takes the steps of all orders until ctx ends. An order that is
// not booked within the time limit is cancelled.
func run(ctx context.Context, databaseURL string, limit time.Duration, args []string) error {
	logger := watermill.NewStdLogger(false, false)
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
	if _, err := pool.Exec(ctx, tables); err != nil {
		return err
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if err := placeFromArgs(ctx, db, pub, limit, args); err != nil {
			return err
		}
	}

	sub, err := forwarder.NewSubscriber(db, forwarder.SubscriberConfig{
		Forwarder: forwarder.Config{InboxRetention: 30 * 24 * time.Hour}, // no Forwarder cleans the inbox
	}, logger)
	if err != nil {
		return err
	}
	stack, err := outboxmw.Stack(pub, outboxmw.StackConfig{Service: "shop"}, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(stack...)
	router.AddHandler("saga", topic, sub, topic, pub, step)
	return outbox.Run(ctx, router)
}

func placeFromArgs(
	ctx context.Context, db *outbox.DB, pub *outbox.Publisher, limit time.Duration, args []string,
) error {
	if len(args) != 3 {
		return fmt.Errorf("give the order, the item and the amount, as in: saga order-1 book 42")
	}
	amount, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return fmt.Errorf("the amount: %w", err)
	}
	return place(ctx, db, pub, limit, args[0], args[1], amount)
}
