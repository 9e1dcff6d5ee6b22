package nats_test

import (
	"log"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/nats"
)

func ExampleNewPublisher() {
	pub, err := nats.NewPublisher(nats.PublisherConfig{
		URL:     "nats://localhost:4222",
		Options: []natsgo.Option{natsgo.Name("orders"), natsgo.UserCredentials("orders.creds")},
	}, watermill.NewStdLogger(false, false))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()

	// Pass pub to forwarder.New, which uses the verdicts of its errors.
}
