package forwarder_test

import (
	"context"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// One process publishes the outboxes of all tenants.
func ExampleNewGroup() {
	tenants, err := fleet.New(fleet.Static(
		fleet.Target{Key: "acme", DSN: "postgres://localhost/shared", Tables: outbox.Tables{Schema: "acme"}},
		fleet.Target{Key: "initech", DSN: "postgres://localhost/initech"},
	), fleet.Config{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	group, err := forwarder.NewGroup(tenants, broker, forwarder.GroupConfig{
		Configure: func(_ context.Context, key string, cfg *forwarder.Config, pub *message.Publisher) error {
			if key == "initech" {
				cfg.Concurrency = 8 // or another publisher
			}
			return nil
		},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()                                                  // in a real program, on SIGTERM
	if err := outbox.Run(ctx, group, tenants); err != nil { // the group stops first
		log.Fatal(err)
	}
	// Output:
}
