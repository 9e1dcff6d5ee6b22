// Command eventsourced keeps accounts as their events. A command reads an account's events, decides, and appends new
// ones at the version that it has read; the same transaction publishes them, so the outbox is the feed of the event
// store. A projection behind the inbox keeps a table of balances, each event once and in the order of its account, and
// can be rebuilt from the events at any time.
//
//	DATABASE_URL=postgres://... go run ./eventsourced acme deposit 100 withdraw 30
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, databaseURL string, args []string) error {
	logger := watermill.NewStdLogger(false, false)
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := open(ctx, pool, logger)
	if err != nil {
		return err
	}
	for len(args) >= 3 {
		amount, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return fmt.Errorf("the amount: %w", err)
		}
		switch args[1] {
		case "deposit":
			err = s.deposit(ctx, args[0], amount)
		case "withdraw":
			err = s.withdraw(ctx, args[0], amount)
		default:
			err = fmt.Errorf("%q is neither deposit nor withdraw", args[1])
		}
		if err != nil {
			return err
		}
		args = append(args[:1], args[3:]...)
	}
	router, err := s.router(logger)
	if err != nil {
		return err
	}
	return outbox.Run(ctx, router)
}

// open makes the tables and the event store on them.
func open(ctx context.Context, pool *pgxpool.Pool, logger watermill.LoggerAdapter) (*store, error) {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, logger)
	if err != nil {
		return nil, err
	}
	if _, err := schema.Migrate(ctx, db, schema.MigrateConfig{}); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		return nil, err
	}
	feed, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	return &store{db: db, feed: feed}, err
}

// router handles the feed. Here it comes straight from the outbox; a forwarder and a broker may stand in between.
func (s *store) router(logger watermill.LoggerAdapter) (*message.Router, error) {
	sub, err := forwarder.NewSubscriber(s.db, forwarder.SubscriberConfig{
		Forwarder: forwarder.Config{InboxRetention: 30 * 24 * time.Hour}, // no Forwarder cleans the inbox
	}, logger)
	if err != nil {
		return nil, err
	}
	stack, err := outboxmw.Stack(s.feed, outboxmw.StackConfig{Service: "accounts"}, logger)
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(stack...)
	router.AddConsumerHandler("balances", topic, sub, project)
	return router, nil
}
