package nats

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// Marshaler is the marshaler of a Publisher.
type Marshaler = marshaler

// NewPublisherTo makes a Publisher that sends to another one instead of a broker.
func NewPublisherTo(pub message.Publisher) *Publisher {
	return &Publisher{inner: pub, stall: &stallDetector{lasts: trouble.StallDetector{Limit: time.Hour}}}
}
