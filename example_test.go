package outbox_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Messages of one key leave in order. Without SetKey it is that of the aggregate.
func ExampleSetKey() {
	step := message.NewMessage("0190-1", nil)
	outbox.SetKey(step, "saga-7")
	fmt.Println(step.Metadata.Get(outbox.MetadataKey))

	event := message.NewMessage("0190-2", nil)
	outbox.SetAggregate(event, "order", "42")
	fmt.Println(outbox.AggregateKey("bookings", event))
	// Output:
	// saga-7
	// order/42
}
