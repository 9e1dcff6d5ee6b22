package nats

import (
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
)

// result is the outcome of a delivery.
type result struct {
	inbound.Outcome
	term  *term
	item  *item
	again bool // it had failed before
}

// deliver delivers a new copy of the message and waits for its ack.
func (t *term) deliver(it *item, rec record, again bool) {
	r := result{term: t, item: it, again: again}
	r.Outcome = t.deliverer.Deliver(inbound.Delivery[*natsgo.Msg]{
		Record: cloned(rec.msg), Unkeyed: rec.unkeyed, Context: t.subscription.ctx, Logger: t.logger,
		From: core.Consumed{Topic: rec.msg.Subject,
			Position: fmt.Sprint(t.from.stream.CachedInfo().Config.Name, "/", it.Pos)},
		Position: watermill.LogFields{"stream_seq": it.Pos}, Stopping: t.stopping, Abandoned: t.abandoned,
	})
	select {
	case t.results <- r:
	case <-t.abandoned:
	case <-t.life.Done():
	}
}

func cloned(msg *natsgo.Msg) *natsgo.Msg {
	c := natsgo.NewMsg(msg.Subject)
	c.Data = slices.Clone(msg.Data)
	for name, values := range msg.Header {
		c.Header[name] = slices.Clone(values)
	}
	return c
}
