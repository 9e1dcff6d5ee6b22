package integration_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestBatchRetryAfter: a message that is redelivered before its retry time joins no batch until then. With
// forwarder.Subscriber, which does not redeliver it early, it is handled at that time.
func TestBatchRetryAfter(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	const wait = time.Second
	var calls atomic.Int64
	var first atomic.Pointer[time.Time]
	handle, err := middleware.Batch(h.db, middleware.BatchConfig{
		Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"},
		Outcomes: middleware.OutcomesConfig{Backoff: outbox.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond}},
	}, func(context.Context, []*message.Message) error {
		now := time.Now()
		if calls.Add(1); first.CompareAndSwap(nil, &now) {
			return outbox.RetryAfter(errHandler, wait)
		}
		return nil
	}, newLogCapture(t))
	require.NoError(t, err)

	t.Run("redelivered", func(t *testing.T) {
		msg := newMessage("x")
		for {
			if handle(msg.Copy()) == nil {
				break
			}
		}
		assert.GreaterOrEqual(t, time.Since(*first.Load()), wait)
		assert.EqualValues(t, 2, calls.Load())
	})
	t.Run("forwarder.Subscriber", func(t *testing.T) {
		first.Store(nil)
		calls.Store(0)
		require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			return newOutboxPublisher(t, h).PublishContext(ctx, "orders", newMessage("x"))
		}))
		sub, err := forwarder.NewSubscriber(h.db, forwarder.SubscriberConfig{}, newLogCapture(t))
		require.NoError(t, err)
		startRouter(t, func(r *message.Router) { r.AddConsumerHandler("test", "orders", sub, handle) })
		eventually(t, func() bool {
			return h.count(t, "select count(*) from outbox where published_at is not null") == 1
		}, "the message is handled")
		assert.GreaterOrEqual(t, time.Since(*first.Load()), wait)
		assert.EqualValues(t, 2, calls.Load())
	})
}
