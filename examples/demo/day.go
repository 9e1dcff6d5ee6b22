package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/examples/demo/booking"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/schema"
)

const settleTimeout = 3 * time.Minute

// day is one run of the demo.
type day struct {
	broker    Broker
	pool      *pgxpool.Pool
	at        Addresses
	screen    *screen
	log       *os.File
	sent      atomic.Int64 // messages, copies included
	forwarder *forwarderProcess
	watch     *watch // nil if it is not watched
}

// open starts the servers and makes tables and topics.
func (d *day) open(ctx context.Context, e Example, o options) error {
	opts := services.Options{Log: os.Stdout}
	postgres, err := services.StartPostgres(ctx, opts)
	if err != nil {
		return err
	}
	if d.broker, err = e.StartBroker(ctx, opts); err != nil {
		return err
	}
	run := strings.ToLower(rand.Text()[:8])
	d.at = Addresses{
		Broker: d.broker.Address(), Orders: "orders-" + run, Bookings: "bookings-" + run, Consumer: "booking-" + run,
	}
	database, err := postgres.NewDatabase(ctx)
	if err != nil {
		return err
	}
	if d.at.Postgres, err = withPoolSize(database); err != nil {
		return err
	}
	if d.pool, err = pgxpool.New(ctx, d.at.Postgres); err != nil {
		return err
	}
	db, err := outbox.FromPgx(d.pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	if _, err := schema.Migrate(ctx, db, schema.MigrateConfig{}); err != nil {
		return err
	}
	if o.watch {
		if d.watch, err = newWatch(db); err != nil {
			return err
		}
	}
	if err := booking.CreateTables(ctx, d.pool); err != nil {
		return err
	}
	if d.at.Postgres, d.at.Forwarder, err = logins(ctx, d.pool, d.at.Postgres, "r"+run); err != nil {
		return err
	}
	return d.broker.Provision(ctx, d.at)
}

// withPoolSize makes the pool large enough for all concurrent handlers and a forwarder.
func withPoolSize(database string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("the database has no URL") // which may hold a password
	}
	query := u.Query()
	query.Set("pool_max_conns", "16")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func (d *day) close() {
	d.pool.Close()
	d.broker.Close()
}

// live runs the service and the day around it until everything has settled, and stops the service.
func (d *day) live(ctx context.Context, e Example, o options, orders []Copy) (err error) {
	var running errgroup.Group
	service, stopService := context.WithCancel(ctx)
	running.Go(func() error {
		defer stopService()
		err := e.serve(service, d.at, d.watch.observers(), newLogger(d.log))
		if err == nil && service.Err() == nil {
			err = errors.New("it ended too early")
		}
		if err != nil {
			return fmt.Errorf("service: %w", err)
		}
		return nil
	})
	defer func() {
		stopService()
		err = errors.Join(running.Wait(), err)
	}()
	if d.forwarder, err = startForwarder(d.at, d.log); err != nil {
		return err
	}
	defer func() { d.forwarder.stop() }()
	if err := d.untilLanes(service, d.forwarder); err != nil {
		return err
	}
	d.screen.say("The service runs with a forwarder; a second forwarder is process %d", d.forwarder.pid())

	showing, hide := context.WithCancel(service)
	var shown sync.WaitGroup
	shown.Go(func() { d.progress(showing, len(orders)) })
	if d.watch != nil {
		shown.Go(func() { d.watch.scrape(showing) })
		shown.Go(func() { d.watch.page.serve(showing) })
		d.screen.say("The page is %s until the day is over", d.watch.page.url())
	}
	defer shown.Wait()
	defer hide()

	happening, ctx := errgroup.WithContext(service)
	happening.Go(func() error { return d.send(ctx, orders, o.over) })
	if !o.calm {
		happening.Go(func() error { return d.chaos(ctx, len(orders), o.outage) })
	}
	if err := happening.Wait(); err != nil {
		return err
	}
	return d.settle(service)
}

// settle waits until all orders are handled and all events published. If that takes too long, it prints so and leaves
// the rest to the count.
func (d *day) settle(ctx context.Context) error {
	patient, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := until(patient, func() (bool, error) {
		if done, err := d.broker.Consumed(patient, d.at.Orders); err != nil || !done {
			return false, nil // an error may be the last of the outage
		}
		_, _, left, err := d.numbers(patient)
		return left == 0, err
	})
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		d.screen.say("It has not settled after %s", settleTimeout)
		return nil
	}
	return err
}

// progress shows the numbers each second.
func (d *day) progress(ctx context.Context, orders int) {
	for pause(ctx, time.Second) == nil {
		booked, published, left, err := d.numbers(ctx)
		if err != nil {
			continue
		}
		d.screen.show("%6s of %s orders sent %8s booked %8s published %6s waiting",
			number(int(d.sent.Load())), number(orders), number(booked), number(published), number(left))
	}
	d.screen.clear()
}

func (d *day) numbers(ctx context.Context) (booked, published, left int, err error) {
	err = d.pool.QueryRow(ctx, `
		select (select count(*) from bookings),
		       count(*) filter (where published_at is not null),
		       count(*) filter (where published_at is null) from outbox`).Scan(&booked, &published, &left)
	return booked, published, left, err
}
