package core

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Delivery is outbox.Delivery, which says what its fields are.
type Delivery struct {
	ID         int64
	Topic      string
	Key        string
	Attempt    int
	EnqueuedAt time.Time
}

type deliveryKey struct{}

// delivery is the sign that a forwarder.Subscriber puts into the context of a message. In-process Pub/Subs pass contexts
// on, so it counts only with the message that it was made for.
type delivery struct {
	Delivery
	msg   *message.Message
	relay bool
	tree  *Tree // nil until BindDelivery
}

// WithDelivery signs msg, whose context is to be the one returned. A relay passes the message on.
func WithDelivery(ctx context.Context, msg *message.Message, d Delivery, relay bool) context.Context {
	return context.WithValue(ctx, deliveryKey{}, &delivery{Delivery: d, msg: msg, relay: relay})
}

// IsDelivered says whether this very message, and not a copy, was signed, and whether for a relay.
func IsDelivered(msg *message.Message) (delivered, relay bool) {
	d, _ := msg.Context().Value(deliveryKey{}).(*delivery)
	if d == nil || d.msg != msg {
		return false, false
	}
	return true, d.relay
}

// BindDelivery returns ctx, made of the context of msg, with a sign that counts in this handler alone, or with none if it was
// made for another message.
func BindDelivery(ctx context.Context, msg *message.Message) context.Context {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	if d == nil {
		return ctx
	}
	var bound *delivery
	if d.msg == msg {
		marked, tree := TreeOf(ctx)
		ctx, bound = marked, &delivery{Delivery: d.Delivery, msg: msg, relay: d.relay, tree: &tree}
	}
	return context.WithValue(ctx, deliveryKey{}, bound)
}

// DeliveryFrom returns the delivery of the handler whose context this is. Of one that was not bound it knows only
// the topic.
func DeliveryFrom(ctx context.Context) (Delivery, bool) {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	if d == nil {
		return Delivery{}, false
	}
	if d.tree != nil && !d.tree.Has(ctx) {
		return Delivery{}, false
	}
	if topic := message.SubscribeTopicFromCtx(ctx); d.tree == nil && topic != "" && topic != d.Topic {
		return Delivery{}, false
	}
	return d.Delivery, true
}
