package move_test

import (
	"database/sql"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/move"
)

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
