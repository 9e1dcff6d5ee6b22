package outbox_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Messages of one key are published in order. Without SetKey the aggregate is the key.
func ExampleSetKey() {
	step := message.NewMessage("0190-1", nil)
	outbox.SetKey(step, "saga-7")
	fmt.Println(step.Metadata.Get(outbox.MetadataKey))

	event := message.NewMessage("0190-2", nil)
	outbox.SetAggregate(event, "order", "42")
	fmt.Println(outbox.AggregateKey("bookings", event))

	half := message.NewMessage("0190-3", nil)
	half.Metadata.Set(outbox.MetadataAggregateID, "42")
	_, err := outbox.AggregateKey("bookings", half)
	fmt.Println(err)
	// Output:
	// saga-7
	// order/42 <nil>
	// outbox: invalid message: it has half an aggregate (aggregate_type "", aggregate_id "42"), so no key and no order: set both, or set metadata outbox_key, which may be empty
}
