package integration_test

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestWatermillsDelays: however Watermill expresses a delay, the outbox waits, for any broker.
func TestWatermillsDelays(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		delaying, err := delay.NewPublisher(pub, delay.PublisherConfig{AllowNoDelay: true})
		require.NoError(t, err)
		always, err := delay.NewPublisher(pub, delay.PublisherConfig{
			DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) {
				return delay.For(2 * time.Hour), nil
			},
		})
		require.NoError(t, err)
		type Placed struct{ ID string }
		bus, err := cqrs.NewEventBusWithConfig(delaying, cqrs.EventBusConfig{
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "bus", nil },
			Marshaler:            cqrs.JSONMarshaler{},
		})
		require.NoError(t, err)
		require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			inMessage := newMessage("")
			delay.Message(inMessage, delay.For(time.Hour))
			require.NoError(t, pub.PublishContext(ctx, "message", inMessage))
			require.NoError(t, bus.Publish(delay.WithContext(ctx, delay.Until(time.Now().Add(3*time.Hour))), Placed{"1"}))
			require.NoError(t, bus.Publish(ctx, Placed{"2"}))
			generated := newMessage("")
			generated.SetContext(ctx)
			return always.Publish("generated", generated)
		}))
		assert.Equal(t, []string{"message 1", "bus 3", "bus ready", "generated 2"}, column[string](t, h,
			`select topic || ' ' || coalesce(round(extract(epoch from due_at - created_at) / 3600)::text, 'ready') `+
				`from outbox order by id`))
	})
}

// TestCopiedMetadataDelaysOnce: a message with the metadata of one that was delayed is not delayed again, and keeps its
// place among those of its key.
func TestCopiedMetadataDelaysOnce(t *testing.T) {
	h := onPgx(t)
	received := make(chan message.Metadata, 3)
	w := startForwarderOn(t, h, quickConfig(), func(topic string, msg *message.Message) error {
		if topic == "first" {
			received <- maps.Clone(msg.Metadata)
		}
		return nil
	})
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	for _, set := range []func(*message.Message){
		func(msg *message.Message) { outbox.SetDelay(msg, 50*time.Millisecond) },
		func(msg *message.Message) { outbox.SetDueAt(msg, time.Now().Add(50*time.Millisecond)) },
		func(msg *message.Message) { delay.Message(msg, delay.For(time.Second)) },
	} {
		msg := newMessage("")
		set(msg)
		outbox.SetKey(msg, "K")
		require.NoError(t, pub.Publish("first", msg))
		var metadata message.Metadata
		select {
		case metadata = <-received:
		case <-time.After(patience):
			t.Fatal("no message arrived")
		}
		assert.Equal(t, msg.Metadata[delay.DelayedForKey], metadata[delay.DelayedForKey])
		h.exec(t, "delete from outbox where published_at is not null")
		copied := newMessage("copy")
		copied.Metadata = metadata
		second := newMessage("second")
		outbox.SetKey(second, "K")
		require.NoError(t, pub.Publish("copies", copied, second))
		assert.Zero(t, h.count(t, "select count(*) from outbox where topic = 'copies' and due_at is not null"))
		w.idle(t)
	}
}

// TestWatermillsRequeuer: a message of JetStream that fails twice goes through the outbox, delayed, back to its topic
// each time under its UUID, which JetStream does not take for a copy, and is handled once.
func TestWatermillsRequeuer(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	broker := func(t *testing.T) message.Subscriber {
		sub, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{URL: url, Unmarshaler: &wmnats.NATSMarshaler{}}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		return sub
	}
	t.Run("it reads the outbox", func(t *testing.T) {
		t.Parallel()
		requeues(t, url, broker(t), func(h handle) message.Subscriber {
			sub, err := forwarder.NewSubscriber(h.db, forwarder.SubscriberConfig{
				Forwarder: forwarder.Config{PollInterval: 50 * time.Millisecond},
			}, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, sub.Close()) })
			return sub
		})
	})
	t.Run("it reads the broker", func(t *testing.T) {
		t.Parallel()
		requeues(t, url, broker(t), func(h handle) message.Subscriber {
			f, err := forwarder.New(h.db, natsPublisher(t, url), quickConfig(), nil)
			require.NoError(t, err)
			runInBackground(t, f)
			return broker(t)
		})
	})
}

func requeues(t *testing.T, url string, orders message.Subscriber, aside func(h handle) message.Subscriber) {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	newEffects(t, h)
	_, _, prefix := natsStream(t, url, nil)
	pub := natsPublisher(t, url)
	putAside, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	poison, err := wmiddleware.PoisonQueue(putAside, prefix+"requeue")
	require.NoError(t, err)
	delayOnError := wmiddleware.DelayOnError{
		InitialInterval: 1100 * time.Millisecond, MaxInterval: time.Hour, Multiplier: 1,
	}
	var retries []string
	router := startRouter(t, func(r *message.Router) {
		_, err := requeuer.NewRequeuer(requeuer.Config{
			Subscriber: aside(h), SubscribeTopic: prefix + "requeue", Publisher: pub, Router: r,
			GeneratePublishTopic: func(params requeuer.GeneratePublishTopicParams) (string, error) {
				return params.Message.Metadata.Get(wmiddleware.PoisonedTopicKey), nil
			},
		}, watermill.NopLogger{})
		require.NoError(t, err)
		handler := r.AddConsumerHandler("h", prefix+"orders", orders, func(msg *message.Message) error {
			if err := write(h, msg); err != nil {
				return err
			}
			if retries = append(retries, msg.Metadata.Get(requeuer.RetriesKey)); len(retries) < 3 {
				return errHandler
			}
			return nil
		})
		handler.AddMiddleware(poison, delayOnError.Middleware)
		handler.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
	})
	msg := newMessage("{}")
	require.NoError(t, pub.Publish(prefix+"orders", msg))
	eventually(t, func() bool {
		return h.count(t, "select count(*) from inbox where message_id = $1 and processed_at is not null", msg.UUID) == 1
	}, "it is handled after all")
	require.NoError(t, router.Close())
	assert.Equal(t, []string{"", "1", "2"}, retries)
	assert.Equal(t, 1, effects(t, h, msg))
	// Watermill truncates the time to seconds, so on a busy machine it may already have passed.
	eventually(t, func() bool {
		return h.count(t, `select count(*) from outbox where topic = $1 and published_at is not null`, prefix+"requeue") == 2
	}, "both are settled")
	assert.Equal(t, 2, h.count(t, `select count(*) from outbox where topic = $1
		and published_at >= greatest(due_at, (metadata->>'_watermill_delayed_until')::timestamptz)`, prefix+"requeue"),
		"the outbox delayed it")
}

// TestRetryInsideOfPoisonQueue: the middleware that was added first is outermost, so a message goes to the poison queue
// once its retries are exhausted, and no attempt leaves a trace.
func TestRetryInsideOfPoisonQueue(t *testing.T) {
	h := onPgx(t)
	newEffects(t, h)
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	t.Cleanup(func() { _ = broker.Close() })
	aside, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	poison, err := wmiddleware.PoisonQueue(aside, "poison")
	require.NoError(t, err)
	retry := wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Logger: watermill.NopLogger{}}
	var calls atomic.Int32
	router := startRouter(t, func(r *message.Router) {
		r.AddMiddleware(poison, retry.Middleware)
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
		r.AddHandler("h", "orders", broker, "events", broker, func(msg *message.Message) ([]*message.Message, error) {
			calls.Add(1)
			if err := write(h, msg); err != nil {
				return nil, err
			}
			return nil, errHandler
		})
	})
	msg := newMessage("{}")
	require.NoError(t, broker.Publish("orders", msg))
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox where topic = 'poison' and uuid = $1", msg.UUID) == 1
	}, "it is in the poison queue")
	require.NoError(t, router.Close())
	assert.EqualValues(t, 3, calls.Load())
	assert.Zero(t, effects(t, h, msg))
}
