package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
)

func newAdmin() *admin.Admin {
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/shop") // connects on first use
	if err != nil {
		log.Fatal(err)
	}
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	a, err := admin.New(db, admin.Config{Actor: "jane"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	return a
}

// The broker accepts large messages again, so messages that died because of their size are requeued: first a preview,
// then exactly the counted messages.
func ExampleAdmin_Requeue() {
	act := admin.Action{
		Filter: admin.Filter{Topic: "orders", ErrorContains: "message too large"},
		Reason: "the broker's limit is 4 MiB now",
		DryRun: true,
	}
	ctx, a := context.Background(), newAdmin()
	counted, err := a.Requeue(ctx, act)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("would requeue", counted.Matched)

	act.DryRun, act.Preview = false, counted.Preview
	done, err := a.Requeue(ctx, act)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("requeued", done.Touched)
}

// Doctor's findings, one line each. Critical findings fail a deployment.
func ExampleAdmin_Doctor() {
	findings, err := newAdmin().Doctor(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range findings {
		fmt.Println(f)
		if f.Severity == admin.Critical {
			log.Fatal("not deployed")
		}
	}
}

// An act that would select all messages is refused before the database is queried, unless All is set.
func ExampleAction() {
	_, err := newAdmin().Requeue(context.Background(), admin.Action{Reason: "the broker is back"})
	fmt.Println(errors.Is(err, admin.ErrEmptyFilter))
	// Output: true
}
