package demo

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// Addresses locate the servers, topics and consumers.
type Addresses struct {
	Postgres  string // URL with the login of the service
	Forwarder string // the same with the login of a process that forwards only
	Broker    string // URL, or host:port
	Orders    string // topic that is consumed
	Bookings  string // topic that is published to
	Consumer  string // durable consumer, or consumer group, of the service
}

// Example holds the differences between the examples.
type Example struct {
	Name string
	// Orders arrive over Period. The broker is down for Outage and as long as it takes to start.
	Orders         int
	Period, Outage time.Duration
	// StartBroker starts the broker.
	StartBroker func(ctx context.Context, opts services.Options) (Broker, error)
	// Subscriber is for the orders, Publisher for the outbox.
	Subscriber func(at Addresses, logger watermill.LoggerAdapter) (message.Subscriber, error)
	Publisher  func(at Addresses, logger watermill.LoggerAdapter) (message.Publisher, error)
}

// Broker is the demo's own access to the broker, outside of the service.
type Broker interface {
	Address() string
	// Provision makes the topics and what consumers need.
	Provision(ctx context.Context, at Addresses) error
	// Send publishes and returns when all copies are stored. After an error it may be called again with the same copies.
	Send(ctx context.Context, topic string, copies []Copy) error
	// Consumed reports whether the service has acknowledged everything on the topic.
	Consumed(ctx context.Context, topic string) (bool, error)
	// Read returns everything on the topic, with the messages of each key in order.
	Read(ctx context.Context, topic string) ([]Stored, error)
	// TakeAway stops the broker.
	TakeAway() error
	// BringBack starts the broker again with its stored messages.
	BringBack(ctx context.Context) error
	// Close ends the broker for good and removes its data.
	Close()
}

// Copy is one of the copies of a message that the demo sends.
type Copy struct {
	UUID    string
	Number  int // counts the copies from 1
	Key     string
	Payload []byte
}

// Stored is a message found on the broker.
type Stored struct {
	UUID    string
	Payload []byte
}
