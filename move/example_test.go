package move_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/move"
)

// An outbox table of one's own, whose relay has been stopped. The dry run counts what would be moved.
func ExampleFromTable() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	moved, err := move.FromTable(ctx, pub, move.TableConfig{
		Table:   "events",
		Pending: "sent_at IS NULL",
		Done:    "sent_at = now()",
		Columns: move.Columns{UUID: "id", Topic: "'orders'", Key: "order_id", Payload: "body"},
		Actor:   "jane",
		DryRun:  true,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(moved.Pending, moved.Topics)
}
