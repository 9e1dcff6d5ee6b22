package broker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/broker"
)

// shelf is a broker in memory: its topics, each with its messages.
type shelf map[string][]struct {
	uuid string
	at   time.Time
}

var _ broker.TopicReader = shelf{}

func (s shelf) Each(_ context.Context, topic string, after time.Time, fn func(uuid string) error) error {
	kept, ok := s[topic]
	if !ok {
		return fmt.Errorf("unknown topic %q", topic)
	}
	for _, msg := range kept {
		if msg.at.Before(after) {
			continue
		}
		if err := fn(msg.uuid); err != nil {
			return err
		}
	}
	return nil
}

// A TopicReader for a broker of your own. admin.Reconcile publishes the messages again that Each does not report.
func Example() {
	noon := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	var kept broker.TopicReader = shelf{"orders": {
		{"order-1", noon.Add(-time.Hour)}, {"order-2", noon}, {"order-4", noon.Add(time.Minute)},
	}}
	show := func(uuid string) error {
		fmt.Println(uuid)
		return nil
	}
	fmt.Println(kept.Each(context.Background(), "orders", noon, show))
	fmt.Println(kept.Each(context.Background(), "payments", noon, show))
	// Output:
	// order-2
	// order-4
	// <nil>
	// unknown topic "payments"
}
