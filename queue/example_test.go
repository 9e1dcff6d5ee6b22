package queue_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

var pool *pgxpool.Pool // your own

// A message is stored when it arrives and handled later, once, however often its sender repeats it.
func Example() {
	ctx := context.Background()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	store, err := queue.NewStore(db, queue.StoreConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	paid := func(_ context.Context, msg *queue.Message) error {
		fmt.Printf("%s paid %s\n", msg.MessageID, msg.Payload) // SQL, in outbox.PgxTx(ctx)
		return nil
	}
	dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Service:  "billing",
		Handlers: map[string]queue.Handler{"invoice.paid": {Handle: paid}},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	item := queue.Item{
		ID:      queue.ID{Source: "bank", MessageID: "invoice-4711"},
		Topic:   "invoice.paid",
		Payload: []byte("10 EUR"),
	}
	enqueue := func() {
		stored, err := store.Enqueue(ctx, item)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(stored[0].Result)
	}
	enqueue()
	enqueue()
	if err := dispatcher.Drain(ctx); err != nil { // or Run, which returns when ctx ends
		log.Fatal(err)
	}
	enqueue()
	// It prints:
	// new
	// updated
	// invoice-4711 paid 10 EUR
	// already done
}
