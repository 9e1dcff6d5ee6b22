// Command page shows the page of package admin on a bad day: messages come and go, some fail, some are dead, and one
// broker is down.
//
//	go run ./demo/page      # then open http://127.0.0.1:8080/outbox/
//
// It starts a Postgres of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err == nil {
		err = run(ctx, listener)
	}
	if err = errors.Join(err, services.StopAll()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listener net.Listener) error {
	server, err := services.StartPostgres(ctx, services.Options{})
	if err != nil {
		return err
	}
	url, err := server.NewDatabase(ctx)
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	if _, err := schema.Migrate(ctx, db, schema.MigrateConfig{}); err != nil {
		return err
	}
	events, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return err
	}
	fwd, err := forwarder.New(db, brokers{}, forwarder.Config{
		Name: "shop-1", Classify: classify, MaxAttempts: 2, MinDeadAge: -1,
	}, nil)
	if err != nil {
		return err
	}

	// The page. Everybody may do everything, because it listens only on this machine. See Authorize in package ui.
	page, err := ui.New(db, ui.Config{
		Title:          "Shop",
		SampleInterval: 2 * time.Second,
		Authorize: func(*http.Request) (ui.Access, error) {
			return ui.Access{Actor: "you", Act: true, Payloads: true}, nil
		},
	}, watermill.NewStdLogger(false, false))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", page)
	fmt.Printf("open http://%s/outbox/ and end with Ctrl-C\n", listener.Addr())
	return outbox.Run(ctx, shop{db, events}, fwd, page, outbox.HTTPServer(&http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second,
	}, listener))
}

// shop writes events at a varying rate.
type shop struct {
	db     *outbox.DB
	events *outbox.Publisher
}

// Run writes until ctx ends.
func (s shop) Run(ctx context.Context) error {
	topics := []string{
		"orders.placed", "orders.placed", "orders.placed", "payments.captured", "payments.captured", "stock.reserved",
		"invoices.created", "emails.welcome",
	}
	for ctx.Err() == nil {
		err := outbox.InTx(ctx, s.db, func(ctx context.Context) error {
			for range 1 + rand.IntN(20) {
				order := 1000 + rand.IntN(9000)
				msg := message.NewMessage(watermill.NewUUID(),
					fmt.Appendf(nil, `{"order_id": %d, "total_cents": %d}`, order, rand.IntN(20_000)))
				outbox.SetAggregate(msg, "order", fmt.Sprint(order))
				if err := s.events.PublishContext(ctx, topics[rand.IntN(len(topics))], msg); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(50+rand.IntN(400)) * time.Millisecond):
		}
	}
	return ctx.Err()
}

// brokers is a publisher that sends nothing, and fails for some messages.
type brokers struct{}

var errAway = errors.New("dial tcp 10.2.0.17:9092: connect: connection refused")

// Publish fails for some topics, and for some messages.
func (brokers) Publish(topic string, messages ...*message.Message) error {
	switch {
	case topic == "invoices.created":
		return errAway
	case topic == "emails.welcome" && rand.IntN(2) == 0:
		return fmt.Errorf("smtp: 451 4.7.1 try again later, queue id %s", messages[0].UUID[:8])
	case rand.IntN(400) == 0:
		return fmt.Errorf("message of %d bytes is larger than the topic allows", 1_048_000+rand.IntN(10_000))
	}
	return nil
}

// Close does nothing.
func (brokers) Close() error { return nil }

func classify(err error) forwarder.Verdict {
	if errors.Is(err, errAway) {
		return forwarder.Unavailable
	}
	return forwarder.Retry
}
