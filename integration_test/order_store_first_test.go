package integration_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestStoreFirstInOrder is the recipe of the README: a second set of outbox tables between the broker and the handlers,
// which keeps the order of each key and drops copies.
func TestStoreFirstInOrder(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `create table effects (n bigserial, message_id text not null, note text not null default '')`)
	work := h.with(t, sqltext.Tables{Outbox: "work"})
	require.NoError(t, makeTables(t.Context(), work.db))
	broker := newFeed()
	startRouter(t, func(r *message.Router) {
		store := r.AddHandler("store", "orders", broker, "orders", newOutboxPublisher(t, work),
			func(msg *message.Message) ([]*message.Message, error) {
				return message.Messages{msg}, nil
			})
		store.AddMiddleware(stackFor(t, newOutboxPublisher(t, work), middleware.StackConfig{}, nil)...)
		process := r.AddHandler("process", "orders", newSubscriber(t, work, quickConfig()), "events",
			newOutboxPublisher(t, h), book(h))
		process.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
	})
	for i := range 10 {
		for _, key := range []string{"a", "b", "c"} {
			for range 2 { // brokers deliver twice
				msg := message.NewMessage(key+itoa(i), nil)
				outbox.SetKey(msg, key)
				require.True(t, broker.deliver(t, msg), "it is acked once stored")
			}
		}
	}
	eventually(t, func() bool { return outboxed(t, h) == 30 }, "each is processed")
	assert.Equal(t, 30, h.count(t, "select count(*) from effects"))
	for _, key := range []string{"a", "b", "c"} {
		assert.Equal(t, numbered(key, 0, 9),
			column[string](t, h, "select message_id from effects where left(message_id, 1) = $1 order by n", key))
	}
}
