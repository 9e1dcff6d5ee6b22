// Command kafka demonstrates the outbox between Kafka and Postgres on a bad day: duplicates arrive, the broker goes
// down, a forwarder is killed. At the end it counts how often each order was booked and published.
//
//	go run ./demo/kafka [-orders 6000] [-for 12s]
//
// Package demo has the service and its bad day; here is what differs by broker.
package main

import (
	"time"

	"github.com/millrace-go/watermill-outbox/examples/demo"
)

func main() {
	demo.Main(demo.Example{
		Name:        "kafka",
		Orders:      6000,
		Period:      12 * time.Second,
		Outage:      time.Second,
		StartBroker: startBroker,
		Subscriber:  newSubscriber,
		Publisher:   newPublisher,
	})
}
