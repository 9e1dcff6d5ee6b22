package nats_test

import (
	"log"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/publisher/nats"
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

	// Hand pub to forwarder.New, which asks it what its errors mean.
}

// A publisher on a connection of your own, with the safe settings.
func ExampleWrap() {
	conn, err := natsgo.Connect("nats://localhost:4222", nats.Options()...)
	if err != nil {
		log.Fatal(err)
	}
	own, err := wmnats.NewPublisherWithNatsConn(conn, nats.PublishConfig(), nil)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := nats.Wrap(own, watermill.NewStdLogger(false, false))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
}
