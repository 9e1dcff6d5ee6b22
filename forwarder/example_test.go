package forwarder_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// The zero Config is ready to use. New validates a Config and names each wrong field.
func ExampleNew() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop") // connects on first use
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	defer broker.Close()

	_, err = forwarder.New(db, broker, forwarder.Config{}, nil)
	fmt.Println(err)

	_, err = forwarder.New(db, broker, forwarder.Config{
		Concurrency: -1,
		Backoff:     outbox.Backoff{Initial: time.Minute, Max: time.Second},
	}, nil)
	fmt.Println(err)
	// Output:
	// <nil>
	// Config.Concurrency is -1: use at least 1
	// Config.Backoff.Max is 1s: it must be at least Initial, 1m0s
}

// A forwarder that publishes nothing shows why: this one has not started, so it owns no lane and has no lease.
func ExampleForwarder_State() {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop") // connects on first use
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	defer broker.Close()
	f, err := forwarder.New(db, broker, forwarder.Config{}, nil)
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(f.State())
	// Output:
	// 0 of 0 lanes read; no lease
}
