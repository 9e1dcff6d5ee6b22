package move_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/move"
)

// Your own outbox table, whose relay has been stopped. The dry run counts the messages to move.
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

// The transaction, watermill-sql's publisher and its calls stay unchanged.
func ExampleNewSchemaAdapter() {
	pool, err := sql.Open("postgres", "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	db, err := outbox.FromSQL(pool, outbox.DBConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	adapter, err := move.NewSchemaAdapter(pub, move.SchemaAdapterConfig{})
	if err != nil {
		log.Fatal(err)
	}

	tx, err := pool.Begin()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	events, err := wsql.NewPublisher(tx, wsql.PublisherConfig{
		SchemaAdapter: adapter, // was wsql.DefaultPostgreSQLSchema{}
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := events.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte("order 4711"))); err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}
	db.Wake() // or the forwarder finds it at its next poll
}
