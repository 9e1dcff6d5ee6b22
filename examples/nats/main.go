// Nats shows the outbox between JetStream and Postgres on a bad day: duplicates come in, the broker goes away, a
// forwarder is killed. At the end it counts what became of every order.
//
//	go run ./nats [-orders 8000] [-for 16s]
//
// What differs by broker is connect.go and broker.go. The service, and its bad day, is package internal/demo.
package main

import (
	"time"

	"github.com/millrace-go/watermill-outbox/examples/internal/demo"
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
