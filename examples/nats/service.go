package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/examples/booking"
	"github.com/millrace-go/watermill-outbox/examples/internal/demo"
	"github.com/millrace-go/watermill-outbox/forwarder"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

// runService consumes orders, books each of them once and publishes the events, until ctx is over.
func runService(
	ctx context.Context, at demo.Addresses, observers []observe.Observer, logger watermill.LoggerAdapter,
) error {
	pool, err := pgxpool.New(ctx, at.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: observers}, logger)
	if err != nil {
		return err
	}

	orders, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL:              at.Broker,
		NatsOptions:      nats.Options(), // reconnect for ever
		SubscribersCount: 8,              // orders that are handled at once
		QueueGroupPrefix: at.Consumer,
		JetStream:        wmnats.JetStreamConfig{DurablePrefix: at.Consumer}, // it exists: see Provision
	}, logger)
	if err != nil {
		return err
	}
	events, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	stack, err := outboxmw.Stack(events, outboxmw.StackConfig{Service: "booking"}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(stack...)
	router.AddHandler("book-orders", at.Orders, orders, at.Bookings, events, booking.Book)

	// The forwarder ends after the router, so that what the last handlers committed can still leave.
	running, ctx := errgroup.WithContext(ctx)
	forwarding, stop := context.WithCancel(context.WithoutCancel(ctx))
	running.Go(func() error { return runForwarder(forwarding, db, at, logger) })
	running.Go(func() error { defer stop(); return router.Run(ctx) })
	return running.Wait()
}

// runForwarder publishes what is committed, until ctx is over. Any number of them, in any number of processes,
// share the work.
func runForwarder(ctx context.Context, db *outbox.DB, at demo.Addresses, logger watermill.LoggerAdapter) error {
	broker, err := nats.NewPublisher(nats.PublisherConfig{URL: at.Broker}, logger)
	if err != nil {
		return err
	}
	defer broker.Close()
	// It asks the publisher what its errors mean: while the broker is away messages wait and are charged no attempt.
	fwd, err := forwarder.New(db, broker, forwarder.Config{
		// How long the lanes of a killed process stay without an owner. The default of 10 s forgives longer
		// pauses; the demo does not want to wait for it.
		LeaseTTL: 3 * time.Second,
	}, logger)
	if err != nil {
		return err
	}
	return fwd.Run(ctx)
}
