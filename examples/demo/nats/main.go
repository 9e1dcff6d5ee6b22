// Command nats demonstrates the outbox between JetStream and Postgres on a bad day: duplicates arrive, the broker goes
// down, a forwarder is killed. At the end it counts how often each order was booked and published.
//
//	go run ./demo/nats [-orders 8000] [-for 16s]
//
// Package demo has the service and its bad day; here is what differs by broker.
package main

import (
	"time"

	"github.com/millrace-go/watermill-outbox/examples/demo"
)

func main() {
	demo.Main(demo.Example{
		Name:        "nats",
		Orders:      8000,
		Period:      16 * time.Second,
		Outage:      3 * time.Second,
		StartBroker: startBroker,
		Subscriber:  newSubscriber,
		Publisher:   newPublisher,
	})
}
