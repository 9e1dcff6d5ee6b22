package outbox

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Delivery is the outbox row that a message was read from.
type Delivery struct {
	ID         int64     // row id; not the order of commits
	Topic      string    // topic the message was published to
	Key        string    // ordering key, "" for none
	Attempt    int       // 1 for the first attempt
	EnqueuedAt time.Time // when the row was written, on the database's clock
}

// DeliveryFromContext returns the outbox row of the message that is being handled, or false if no forwarder.Subscriber
// delivered it to this handler. It returns false in handlers of messages that such a handler publishes within the
// process.
func DeliveryFromContext(ctx context.Context) (Delivery, bool) {
	d, ok := core.DeliveryFrom(ctx)
	return Delivery(d), ok
}
