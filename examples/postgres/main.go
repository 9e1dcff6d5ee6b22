// Command postgres is a service without a broker: an order and the message about it are committed together, and
// handlers of this process, or of others on the same database, take the messages from the queue.
//
//	DATABASE_URL=postgres://... go run ./postgres
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
	"github.com/millrace-go/watermill-outbox/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Stdout.WriteString); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

// shop places orders, books them, and sends receipts.
type shop struct {
	db   *outbox.DB
	jobs *queue.Publisher
	send func(mail string) (int, error)
}

func run(ctx context.Context, databaseURL string, send func(string) (int, error)) error {
	if databaseURL == "" {
		return errors.New("DATABASE_URL is empty: set it, such as to postgres://me:secret@localhost/shop")
	}
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
	if _, err := pool.Exec(ctx, `create table if not exists orders
		(id text primary key, amount bigint not null, booked bool not null default false)`); err != nil {
		return err
	}

	store, err := queue.NewStore(db, queue.StoreConfig{}, logger)
	if err != nil {
		return err
	}
	jobs, err := queue.NewPublisher(store, queue.PublisherConfig{})
	if err != nil {
		return err
	}
	s := &shop{db: db, jobs: jobs, send: send}
	dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{Handlers: map[string]queue.Handler{
		"order.placed":   {Handle: s.book},
		"receipt.wanted": {Handle: s.mail, Detached: true}, // no transaction is open while the mail server works
	}}, logger)
	if err != nil {
		return err
	}
	for range 3 {
		if err := s.place(ctx, order{ID: watermill.NewShortUUID(), Amount: 42}); err != nil {
			return err
		}
	}
	return outbox.Run(ctx, dispatcher)
}

// place stores an order and the message about it, both or neither.
func (s *shop) place(ctx context.Context, o order) error {
	return outbox.InTx(ctx, s.db, func(ctx context.Context) error {
		tx, err := outbox.PgxTx(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into orders (id, amount) values ($1, $2)`, o.ID, o.Amount); err != nil {
			return err
		}
		return s.publish(ctx, "order.placed", o)
	})
}

// book runs in a transaction that also marks the message done and stores the next one.
func (s *shop) book(ctx context.Context, msg *queue.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return outbox.Poison(err)
	}
	tx, err := outbox.PgxTx(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `update orders set booked = true where id = $1`, o.ID); err != nil {
		return err
	}
	return s.publish(ctx, "receipt.wanted", o)
}

// mail runs outside a transaction, and again if the process dies before the message is marked done.
func (s *shop) mail(_ context.Context, msg *queue.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return outbox.Poison(err)
	}
	_, err := s.send(fmt.Sprintf("receipt for order %s: %d\n", o.ID, o.Amount))
	return err
}

func (s *shop) publish(ctx context.Context, topic string, o order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return s.jobs.PublishContext(ctx, topic, message.NewMessage(watermill.NewUUID(), payload))
}
