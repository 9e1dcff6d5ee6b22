package outbox

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Delivery says which outbox row a message was read from.
type Delivery struct {
	ID         int64     // row id; not the order of commits
	Topic      string    // topic the message was published to
	Key        string    // ordering key, "" for none
	Attempt    int       // 1 for the first attempt
	EnqueuedAt time.Time // when the row was written, on the database's clock
}

// DeliveryFromContext returns which outbox row the message that is being handled was read from, or false if no
// forwarder.Subscriber delivered it to this handler. In what a handler publishes to another topic within the process,
// or a Forwarder does, there is none.
func DeliveryFromContext(ctx context.Context) (Delivery, bool) {
	d, ok := core.DeliveryFrom(ctx)
	return Delivery(d), ok
}
