package demo

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// Addresses say where everything is.
type Addresses struct {
	Postgres  string // URL with the login of the service
	Forwarder string // the same with the login of a process that forwards only
	Broker    string // URL, or host:port
	Orders    string // topic that is consumed
	Bookings  string // topic that is published to
	Consumer  string // durable consumer, or consumer group, of the service
}

// Example is what the examples differ in.
type Example struct {
	Name string
	// Orders come in over the time Period; the broker is away for the time Outage and as long as it takes to start.
	Orders         int
	Period, Outage time.Duration
	// StartBroker starts the broker, or finds it through the environment.
	StartBroker func(ctx context.Context, opts services.Options) (Broker, error)
	// Subscriber is for the orders, Publisher for what is in the outbox.
	Subscriber func(at Addresses, logger watermill.LoggerAdapter) (message.Subscriber, error)
	Publisher  func(at Addresses, logger watermill.LoggerAdapter) (message.Publisher, error)
}

// Broker is the broker as the world around the service uses it.
type Broker interface {
	Address() string
	// Provision makes the topics and what consumers need.
	Provision(ctx context.Context, at Addresses) error
	// Send publishes and returns when all copies are stored. After an error it may be called with the same again.
	Send(ctx context.Context, topic string, copies []Copy) error
	// Consumed says whether the service has acknowledged everything on the topic.
	Consumed(ctx context.Context, topic string) (bool, error)
	// Read returns everything on the topic, in an order that keeps that of each key.
	Read(ctx context.Context, topic string) ([]Stored, error)
	// TakeAway stops the broker. It returns an error that wraps errors.ErrUnsupported if the broker is not ours.
	TakeAway() error
	// BringBack starts it again with what it had stored.
	BringBack(ctx context.Context) error
	// Close removes the topics and ends a broker that was started here.
	Close(ctx context.Context, topics ...string)
}

// Copy is one of the copies of a message that arrive.
type Copy struct {
	UUID    string
	Number  int // counts the copies from 1
	Key     string
	Payload []byte
}

// Stored is a message that was found on the broker.
type Stored struct {
	UUID    string
	Payload []byte
}
