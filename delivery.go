package outbox

import (
	"context"
	"time"
)

type deliveryKey struct{}

// Delivery says which outbox row a message was read from. The forwarder puts it into the context of what
// it publishes, and its Subscriber into that of what it delivers.
type Delivery struct {
	ID         int64     // row id; not the order of commits
	Topic      string    // topic the message was published to
	Key        string    // ordering key, "" for none
	Attempt    int       // 1 for the first attempt
	EnqueuedAt time.Time // when the row was written, on the database's clock
}

// WithDelivery returns a context that carries d.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFromContext returns which outbox row the message was read from, or false if it came from elsewhere.
func DeliveryFromContext(ctx context.Context) (Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(Delivery)
	return d, ok
}
