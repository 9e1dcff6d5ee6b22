package broker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/broker"
)

// A broker of your own: admin.Reconcile needs a way to read its messages.
type shelf map[string][]struct {
	uuid string
	at   time.Time
}

var _ broker.TopicReader = shelf{}

func (s shelf) Each(_ context.Context, topic string, after time.Time, fn func(uuid string) error) error {
	held, ok := s[topic]
	if !ok {
		return fmt.Errorf("there is no topic %q", topic)
	}
	for _, msg := range held {
		if msg.at.Before(after) {
			continue
		}
		if err := fn(msg.uuid); err != nil {
			return err
		}
	}
	return nil
}

// A TopicReader for another broker. admin.Reconcile sends published messages again that Each does not return.
func Example() {
	noon := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	var held broker.TopicReader = shelf{"orders": {
		{"order-1", noon.Add(-time.Hour)}, {"order-2", noon}, {"order-4", noon.Add(time.Minute)},
	}}
	show := func(uuid string) error {
		fmt.Println(uuid)
		return nil
	}
	fmt.Println(held.Each(context.Background(), "orders", noon, show))
	fmt.Println(held.Each(context.Background(), "payments", noon, show))
	// Output:
	// order-2
	// order-4
	// <nil>
	// there is no topic "payments"
}
