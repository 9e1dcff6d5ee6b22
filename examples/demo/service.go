package demo

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/examples/demo/booking"
	"github.com/millrace-go/watermill-outbox/forwarder"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

// serve consumes orders, books each of them once and publishes the events, until ctx ends.
func (e Example) serve(
	ctx context.Context, at Addresses, observers []observe.Observer, logger watermill.LoggerAdapter,
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
	orders, err := e.Subscriber(at, logger)
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
	router.AddHandler("book-orders", at.Orders, orders, at.Bookings, events, booking.Book)
	return e.forward(ctx, db, at, logger, router)
}

// forward publishes what is committed, until ctx ends and the runners before it have ended. Any number of
// forwarders, in any number of processes, share the work.
func (e Example) forward(
	ctx context.Context, db *outbox.DB, at Addresses, logger watermill.LoggerAdapter, before ...outbox.Runner,
) error {
	broker, err := e.Publisher(at, logger)
	if err != nil {
		return err
	}
	defer broker.Close()
	fwd, err := forwarder.New(db, broker, forwarder.Config{
		// How long the lanes of a killed process stay without an owner. The default of 10 s tolerates longer pauses; the demo
		// does not want to wait that long.
		LeaseTTL: 3 * time.Second,
	}, logger)
	if err != nil {
		return err
	}
	return outbox.Run(ctx, append(before, fwd)...)
}
