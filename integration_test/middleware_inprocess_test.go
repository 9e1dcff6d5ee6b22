package integration_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// inProcess is a Pub/Sub whose messages keep the context they were published with. If it blocks, Publish returns when
// they are acked.
func inProcess(t testing.TB, blocks bool) *gochannel.GoChannel {
	t.Helper()
	cfg := gochannel.Config{PreserveContext: true, BlockPublishUntilSubscriberAck: blocks}
	pubsub := gochannel.NewGoChannel(cfg, watermill.NopLogger{})
	t.Cleanup(func() { assert.NoError(t, pubsub.Close()) })
	return pubsub
}

// What a Forwarder publishes within the process was not delivered by our Subscriber.
func TestForwarderIntoTheProcess(t *testing.T) {
	h := onPgx(t)
	newEffects(t, h)
	pubsub, broker := inProcess(t, true), &published{}
	pub := newOutboxPublisher(t, h)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
		r.AddHandler("book", "orders", pubsub, "bookings", broker, func(msg *message.Message) ([]*message.Message, error) {
			_, ok := outbox.DeliveryFromContext(msg.Context())
			assert.False(t, ok)
			return book(h)(msg)
		})
	})
	cfg := quickConfig()
	cfg.Topics = []string{"orders"}
	fwd, err := forwarder.New(h.db, pubsub, cfg, nil)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(t.Context()) }()
	h.publish(t, "orders", "", "order")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox where topic = 'orders' and published_at is not null") == 1
	}, "the order is published")
	require.NoError(t, fwd.Close())
	require.NoError(t, <-ended)
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is not null"))
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'bookings'"))
	assert.Zero(t, broker.count(), "it was left to the Router")
}

// The sign of a delivery stays with the handler that it was made to, whatever the handler publishes within the process,
// and however much the two handlers have in common.
func TestDeliveryDoesNotTravel(t *testing.T) {
	h := onPgx(t)
	newEffects(t, h)
	pubsub, broker := inProcess(t, true), &published{}
	pub := newOutboxPublisher(t, h)
	stack := stackFor(t, pub, middleware.StackConfig{}, nil)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stack...)
		r.AddHandler("orders", "orders", pubsub, "bookings", broker, func(msg *message.Message) ([]*message.Message, error) {
			_, ok := outbox.DeliveryFromContext(msg.Context())
			assert.False(t, ok, "the delivery of another handler")
			return book(h)(msg)
		})
	})
	cfg := subscribing(quickConfig())
	cfg.Relay = true
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stack...)
		r.AddHandler("orders", "orders", startSubscriber(t, h, cfg), "orders", pubsub,
			func(msg *message.Message) ([]*message.Message, error) {
				d, ok := outbox.DeliveryFromContext(msg.Context())
				assert.True(t, ok)
				assert.Equal(t, "orders", d.Topic)
				return message.Messages{msg}, nil
			})
	})
	h.publish(t, "orders", "", "order")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox where topic = 'orders' and published_at is not null") == 1
	}, "the order is passed on")
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is not null"))
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'bookings'"))
	assert.Zero(t, broker.count(), "it was left to the Router")
}

// A handler may publish to its own topic within the process, outside of its transaction.
func TestPublishingToTheOwnTopic(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		tx := newTx(t, h, middleware.TxConfig{})
		for name, mws := range map[string][]message.HandlerMiddleware{
			"Tx":    {tx},
			"Stack": stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil),
		} {
			pubsub := inProcess(t, false)
			first, second := newMessage("first"), newMessage("second")
			startRouter(t, func(r *message.Router) {
				r.AddMiddleware(mws...)
				r.AddConsumerHandler(name, "loop", pubsub, func(msg *message.Message) error {
					if msg.UUID == second.UUID {
						return write(h, msg)
					}
					again := second.Copy()
					again.SetContext(outbox.OutsideTx(msg.Context()))
					if err := pubsub.Publish("loop", again); err != nil {
						return err
					}
					eventually(t, func() bool {
						return effects(t, h, second) == 1
					}, "%s: the second is committed while the first is open", name)
					return write(h, msg)
				})
			})
			require.NoError(t, pubsub.Publish("loop", first))
			eventually(t, func() bool { return effects(t, h, first) == 1 }, "%s: the first is committed", name)
			assert.Equal(t, 1, effects(t, h, second), name)
		}
	})
}
