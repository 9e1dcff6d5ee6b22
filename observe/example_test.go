package observe_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-go/watermill-outbox/observe"
)

// pager pages somebody for each message that is no longer retried. It implements one of the interfaces and omits the
// others.
type pager struct{ page func(text string) }

var _ observe.DeadObserver = pager{}

func (p pager) MessageDead(_ context.Context, dead observe.MessageDead) {
	p.page(fmt.Sprintf("%s %s is dead after %d attempts: %v", dead.Topic, dead.UUID, dead.Attempts, dead.Err))
}

// An observer of your own. A handle takes any number of them, in outbox.DBConfig.Observers; here we call it ourselves
// as a forwarder would.
func Example() {
	observers := []observe.Observer{pager{page: func(text string) { fmt.Println(text) }}}
	for _, o := range observers {
		if o, ok := o.(observe.DeadObserver); ok {
			o.MessageDead(context.Background(), observe.MessageDead{
				DB: "shop", Topic: "orders", UUID: "order-1", Attempts: 20, Err: errors.New("message too large"),
			})
		}
	}
	// Output: orders order-1 is dead after 20 attempts: message too large
}
