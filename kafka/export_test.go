package kafka

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Marshaler is the marshaler of a Publisher.
type Marshaler = marshaler

var (
	ErrRefused     = errRefused
	SafeSettings   = safeSettings
	ValidateSarama = validateSarama
)

// NewPublisherTo makes a Publisher that sends to another one instead of a broker.
func NewPublisherTo(pub message.Publisher, logger watermill.LoggerAdapter) *Publisher {
	return &Publisher{inner: pub, logger: core.RedactingLogger(logger)}
}
