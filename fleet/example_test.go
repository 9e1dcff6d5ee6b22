package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
)

// Each tenant has its own schema or database. The fleet connects on first use.
func Example() {
	discover := func(ctx context.Context) ([]fleet.Target, error) {
		// in a real service: SELECT key, dsn FROM tenants
		return []fleet.Target{
			{Key: "acme", DSN: "postgres://localhost/shared", Tables: outbox.Tables{Schema: "acme"}},
			{Key: "globex", DSN: "postgres://localhost/shared", Tables: outbox.Tables{Schema: "globex"}}, // shares acme's pool
			{Key: "initech", DSN: "postgres://db7.internal/initech"},
		}, nil
	}
	tenants, err := fleet.New(discover, fleet.Config{MaxConns: 20}, nil)
	if err != nil {
		log.Fatal(err)
	}
	go tenants.Run(context.Background())
	defer tenants.Close()
	<-tenants.Running()

	fmt.Println(tenants.Keys())
	db, err := tenants.Get("acme") // for outbox.InTx, publishers and so on
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(db.Name())

	_, err = tenants.Get("hooli")
	fmt.Println(errors.Is(err, fleet.ErrUnknownDatabase), err)
	// Output:
	// [acme globex initech]
	// acme
	// true fleet: unknown database: "hooli" is not among the 3 that the last discovery returned
}
