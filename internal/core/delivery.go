package core

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Delivery is the outbox row that a message was read from.
type Delivery struct {
	ID         int64     // row id, which is not the order of commits
	Topic      string    // topic that the message was published to
	Key        string    // ordering key, "" for none
	Attempt    int       // 1 for the first attempt
	EnqueuedAt time.Time // when the row was written, on the database's clock
	Last       bool      // the last attempt: its failure makes the message dead
}

type deliveryKey struct{}

// delivery marks the context of a message from a forwarder.Subscriber or a queue.Subscriber. In-process Pub/Subs pass
// contexts on, so it counts only with the message that it was made for.
type delivery struct {
	Delivery
	stored any // set for a message of a queue.Subscriber, not for a row of the outbox
	msg    *message.Message
	tree   *Tree // nil until BindDelivery
}

// WithDelivery marks msg as delivered. The caller must set the returned context on msg.
func WithDelivery(ctx context.Context, msg *message.Message, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, &delivery{Delivery: d, msg: msg})
}

// WithStored marks msg, which comes from the durable queue, with its stored form.
func WithStored(ctx context.Context, msg *message.Message, topic string, stored any) context.Context {
	return context.WithValue(ctx, deliveryKey{}, &delivery{Delivery: Delivery{Topic: topic}, stored: stored, msg: msg})
}

// DeliveryOf returns the outbox row of this message; nil for a copy, or a message that was not marked.
func DeliveryOf(msg *message.Message) *Delivery {
	d, _ := msg.Context().Value(deliveryKey{}).(*delivery)
	if d == nil || d.msg != msg || d.stored != nil {
		return nil
	}
	return &d.Delivery
}

// BindDelivery returns ctx, derived from the context of msg, with a mark that counts only in this handler, or without a
// mark if it was set for another message.
func BindDelivery(ctx context.Context, msg *message.Message) context.Context {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	if d == nil {
		return ctx
	}
	var bound *delivery
	if d.msg == msg {
		marked, tree := TreeOf(ctx)
		ctx, bound = marked, &delivery{Delivery: d.Delivery, stored: d.stored, msg: msg, tree: &tree}
	}
	return context.WithValue(ctx, deliveryKey{}, bound)
}

// DeliveryFrom returns the delivery of the handler with this context. Before BindDelivery only the topic is known.
func DeliveryFrom(ctx context.Context) (Delivery, bool) {
	if d := deliveryFrom(ctx); d != nil && d.stored == nil {
		return d.Delivery, true
	}
	return Delivery{}, false
}

// StoredFrom returns the value passed to WithStored, or nil.
func StoredFrom(ctx context.Context) any {
	if d := deliveryFrom(ctx); d != nil {
		return d.stored
	}
	return nil
}

func deliveryFrom(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	if d == nil || d.tree != nil && !d.tree.Has(ctx) {
		return nil
	}
	if topic := message.SubscribeTopicFromCtx(ctx); d.tree == nil && topic != "" && topic != d.Topic {
		return nil
	}
	return d
}
