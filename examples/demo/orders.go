package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/examples/demo/booking"
)

const accounts = 40

// makeOrders returns n orders in the order in which they are sent. Every tenth is sent twice: either immediately, so
// that both copies are handled at the same time, or much later.
func makeOrders(n int) []Copy {
	var all []Copy
	late := map[int]Copy{}
	for i := range n {
		order := booking.Order{
			ID:      fmt.Sprintf("order-%06d", i+1),
			Account: fmt.Sprintf("account-%02d", i*7%accounts),
			Cents:   int64(100 + i%900),
		}
		payload, _ := json.Marshal(order)
		c := Copy{UUID: watermill.NewUUID(), Number: 1, Key: order.Account, Payload: payload}
		all = append(all, c)
		again := c
		again.Number = 2
		switch i % 20 {
		case 0:
			all = append(all, again)
		case 10:
			late[i+n/10] = again
		}
		if again, ok := late[i]; ok {
			all = append(all, again)
			delete(late, i)
		}
	}
	for i := n; len(late) > 0; i++ {
		if again, ok := late[i]; ok {
			all = append(all, again)
			delete(late, i)
		}
	}
	return all
}

// send publishes the orders at an even pace over the given time. Orders that the broker did not accept in time follow
// as fast as possible.
func (d *day) send(ctx context.Context, orders []Copy, over time.Duration) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	begun := time.Now()
	for sent := 0; sent < len(orders); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		due := len(orders)
		if elapsed := time.Since(begun); elapsed < over {
			due = int(float64(due) * float64(elapsed) / float64(over))
		}
		due = min(due, sent+500)
		if due <= sent {
			continue
		}
		if err := d.broker.Send(ctx, d.at.Orders, orders[sent:due]); err != nil {
			continue // the broker is down: send the same again
		}
		sent = due
		d.sent.Store(int64(sent))
	}
	return nil
}
