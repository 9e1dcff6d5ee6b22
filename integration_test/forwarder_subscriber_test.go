package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// subscribing returns the part of a forwarder's configuration that a Subscriber has too.
func subscribing(cfg forwarder.Config) forwarder.SubscriberConfig {
	return forwarder.SubscriberConfig{
		AckTimeout: cfg.PublishTimeout, Forwarder: forwarder.Config{
			Concurrency: cfg.Concurrency, PollInterval: cfg.PollInterval, LeaseTTL: cfg.LeaseTTL,
			CloseTimeout: cfg.CloseTimeout, Backoff: cfg.Backoff,
		},
	}
}

func newSubscriber(t testing.TB, h handle, cfg forwarder.Config) *forwarder.Subscriber {
	t.Helper()
	return startSubscriber(t, h, subscribing(cfg))
}

func startSubscriber(t testing.TB, h handle, cfg forwarder.SubscriberConfig) *forwarder.Subscriber {
	t.Helper()
	s, err := forwarder.NewSubscriber(h.db, cfg, newLogCapture(t))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, open := <-messages:
		require.True(t, open, "the channel is closed")
		return msg
	case <-time.After(patience):
		t.Fatal("no message arrived")
	}
	return nil
}

func TestSubscriberAcksAndNacks(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		s := newSubscriber(t, h, quickConfig())
		messages, err := s.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		h.publish(t, "other", "K", "not ours")
		h.publish(t, "orders", "K", "1", "2")

		for attempt := 1; attempt <= 3; attempt++ {
			msg := receive(t, messages)
			assert.Equal(t, "1", string(msg.Payload))
			assert.Equal(t, "K", msg.Metadata[outbox.MetadataKey])
			d, ok := core.DeliveryFrom(msg.Context())
			require.True(t, ok)
			assert.Equal(t, attempt, d.Attempt)
			assert.Equal(t, "orders", d.Topic)
			assert.Equal(t, "K", d.Key)
			assert.Positive(t, d.ID)
			assert.WithinDuration(t, time.Now(), d.EnqueuedAt, patience)
			if attempt < 3 {
				msg.Nack()
				continue
			}
			h.publish(t, "orders", "another", "marker") // everything before it has been delivered when this is
			marker := receive(t, messages)
			assert.Equal(t, "marker", string(marker.Payload), "it arrived before the previous one was acked")
			marker.Ack()
			msg.Ack()
			select {
			case <-msg.Context().Done():
			case <-time.After(patience):
				t.Error("the context outlives the ack")
			}
		}
		receive(t, messages).Ack()
		eventually(t, func() bool {
			return h.count(t, "select count(*) from outbox where topic = 'orders' and published_at is not null") == 3
		}, "all are settled")
		assert.Equal(t, outbox.ErrNacked.Error(), value[string](t, h, "select last_error from outbox where attempts = 2"))
		assert.Equal(t, 1, h.count(t, "select count(*) from outbox where published_at is null"))
	})
}

func TestSubscribersOfATopicShareIt(t *testing.T) {
	h := onPgx(t)
	s := newSubscriber(t, h, sharing(quickConfig()))
	var mu sync.Mutex
	var order = map[string][]string{}
	count, total := make([]int, 3), 0
	all := make(chan struct{})
	var readers sync.WaitGroup
	for i := range count {
		messages, err := s.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		readers.Go(func() {
			for msg := range messages {
				mu.Lock()
				key := msg.Metadata[outbox.MetadataKey]
				order[key] = append(order[key], string(msg.Payload))
				count[i]++
				if total++; total == 600 {
					close(all)
				}
				mu.Unlock()
				msg.Ack()
			}
		})
	}
	eventually(t, func() bool {
		return h.count(t, "select count(distinct owner) from outbox_lanes where owner is not null") == 3
	}, "each has lanes")
	for i := range 60 {
		h.publish(t, "orders", "key-"+itoa(i), numbered("", 1, 10)...)
	}
	select {
	case <-all:
	case <-time.After(patience):
		t.Fatal("not all messages arrived")
	}
	require.NoError(t, s.Close())
	readers.Wait()
	for key, got := range order {
		assert.Equal(t, numbered("", 1, 10), got, key)
	}
	assert.Equal(t, 600, total)
	for i, n := range count {
		assert.NotZero(t, n, "subscriber %d", i)
	}
	assert.Zero(t, h.count(t, "select count(*) from outbox where published_at is null"))
}

func TestSubscriberRefuses(t *testing.T) {
	h := onPgx(t)
	_, err := forwarder.NewSubscriber(nil, forwarder.SubscriberConfig{}, nil)
	require.ErrorIs(t, err, outbox.ErrNoDB)
	s := newSubscriber(t, h, quickConfig())
	_, err = s.Subscribe(t.Context(), "")
	require.Error(t, err)

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Subscribe(t.Context(), "free")
	require.ErrorIs(t, err, outbox.ErrClosed)
}

// TestSubscriberWaitsForAForwarder that already reads its topic.
func TestSubscriberWaitsForAForwarder(t *testing.T) {
	h := onPgx(t)
	broker := newFakeBroker()
	broker.answers(func(string, *message.Message) error { return errRefused })
	f, stop := inTurn(t, h, broker, withTopics("", "taken"), newLogCapture(t))
	<-f.Running()
	messages, err := newSubscriber(t, h, quickConfig()).Subscribe(t.Context(), "taken")
	require.NoError(t, err)
	eventually(t, func() bool { return h.waiting(t, 1) }, "it waits")
	h.publish(t, "taken", "K", "1")
	broker.wait(t, "the forwarder tries it", func() bool { return broker.triedTimes("1") > 0 })
	stop()
	msg := receive(t, messages)
	assert.Equal(t, "1", string(msg.Payload))
	msg.Ack()
}

// TestSubscriptionEnds: the channel closes, the contexts end, and unacked messages are delivered again without a
// charge.
func TestSubscriptionEnds(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.CloseTimeout = 200 * time.Millisecond
	s := newSubscriber(t, h, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := s.Subscribe(ctx, "orders")
	require.NoError(t, err)
	h.publish(t, "orders", "K", "1", "2")
	msg := receive(t, messages)
	cancel()
	select {
	case <-msg.Context().Done():
	case <-time.After(patience):
		t.Fatal("the message's context did not end")
	}
	for range messages {
		t.Error("another message arrived")
	}
	assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0 or published_at is not null"))

	messages, err = s.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	for _, want := range []string{"1", "2"} {
		msg := receive(t, messages)
		assert.Equal(t, want, string(msg.Payload))
		msg.Ack()
	}
}
