// Kafka shows the outbox between Kafka and Postgres on a bad day: duplicates come in, the broker goes away, a
// forwarder is killed. At the end it counts what became of every order.
//
//	go run ./kafka [-orders 6000] [-for 12s]
//
// What differs by broker is connect.go and broker.go. The service, and its bad day, is package internal/demo.
package main

import (
	"time"

	"github.com/millrace-go/watermill-outbox/examples/internal/demo"
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
