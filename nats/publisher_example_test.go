package nats_test

import (
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
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

// Each message has an identity by which JetStream drops copies, and the headers that the application asks for.
// NewPublisher takes a Marshaler by itself.
func ExampleMarshaler() {
	msg := message.NewMessage("0190-1", []byte("paid"))
	nats.SetHeader(msg, "Nats-TTL", "1h")
	sent, err := nats.Marshaler{}.Marshal("orders", msg)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sent.Subject, sent.Header.Get(natsgo.MsgIdHdr), sent.Header.Get("Nats-TTL"))
	// Output: orders 0190-1 orders 1h
}
