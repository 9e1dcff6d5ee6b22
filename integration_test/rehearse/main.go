// Rehearse is one side of an upgrade: .ci/rehearse builds it of the old version and of the new one and lets them work
// together. It uses only what every version has.
//
//	rehearse migrate          creates or upgrades the tables, and says what it ran
//	rehearse write FIRST N    writes messages FIRST to FIRST+N-1 to the outbox, each in a transaction
//	rehearse forward N        forwards until the table sent has N messages
//	rehearse check N          fails unless messages 0 to N-1 were sent, in order for each key
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/schema"
)

const keys = 10

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rehearse:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	numbers := make([]int, 2)
	for i, arg := range args[min(1, len(args)):] {
		n, err := strconv.Atoi(arg)
		if err != nil || i > 1 {
			return fmt.Errorf("argument %q", arg)
		}
		numbers[i] = n
	}
	pool, err := pgxpool.New(ctx, os.Getenv("OUTBOX_POSTGRES_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	switch args[0] {
	case "migrate":
		ran, err := schema.Migrate(ctx, db, schema.MigrateConfig{})
		for _, m := range ran {
			fmt.Printf("  migration %d, %s\n", m.Version, m.Name)
		}
		return err
	case "write":
		return write(ctx, db, numbers[0], numbers[1])
	case "forward":
		return forward(ctx, db, pool, numbers[0])
	case "check":
		return check(ctx, pool, numbers[0])
	}
	return fmt.Errorf("no such command: %q", args[0])
}

func write(ctx context.Context, db *outbox.DB, first, n int) error {
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return err
	}
	for i := first; i < first+n; i++ {
		msg := message.NewMessage(strconv.Itoa(i), []byte("payload"))
		outbox.SetKey(msg, strconv.Itoa(i%keys))
		if err := outbox.InTx(ctx, db, func(ctx context.Context) error {
			return pub.PublishContext(ctx, "rehearsal", msg)
		}); err != nil {
			return err
		}
	}
	return nil
}

// toTable is a broker that records arrivals in a table.
type toTable struct{ pool *pgxpool.Pool }

func (p toTable) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		if _, err := p.pool.Exec(msg.Context(), "INSERT INTO sent (message) VALUES ($1::text::int)", msg.UUID); err != nil {
			return err
		}
	}
	return nil
}

func (toTable) Close() error { return nil }

func forward(ctx context.Context, db *outbox.DB, pool *pgxpool.Pool, n int) (err error) {
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS sent (id bigserial PRIMARY KEY, message int)"); err != nil {
		return err
	}
	f, err := forwarder.New(db, toTable{pool}, forwarder.Config{}, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	defer func() { err = errors.Join(err, f.Close()) }()
	for sent := 0; sent < n; {
		select {
		case err := <-ended:
			return fmt.Errorf("the forwarder ended: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
		if err := pool.QueryRow(ctx, "SELECT count(DISTINCT message) FROM sent").Scan(&sent); err != nil {
			return err
		}
	}
	return nil
}

func check(ctx context.Context, pool *pgxpool.Pool, n int) error {
	var sent, wrong int
	err := pool.QueryRow(ctx, `WITH first AS (SELECT message, min(id) AS id FROM sent GROUP BY message)
SELECT (SELECT count(*) FROM first WHERE message BETWEEN 0 AND $1 - 1),
       (SELECT count(*) FROM (
         SELECT message < lag(message) OVER (PARTITION BY message % $2 ORDER BY id) AS back FROM first) f WHERE back)`,
		n, keys).Scan(&sent, &wrong)
	if err == nil && (sent != n || wrong > 0) {
		err = fmt.Errorf("%d of %d messages were sent, %d out of order", sent, n, wrong)
	}
	return err
}
