package integration_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

func TestPublishTimeout(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout = time.Second
	cfg.Concurrency = 4
	goOn := make(chan struct{})
	var attempts atomic.Int32
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "hangs" && attempts.Add(1) == 1 {
			<-goOn
			return errRefused // too late to matter
		}
		return nil
	})
	w.publish(t, "orders", "K", "hangs", "next")
	w.publish(t, "orders", "", numbered("u", 1, 100)...)
	w.arrives(t, append(numbered("u", 1, 100), "hangs", "next")...)
	assert.Equal(t, []string{"hangs", "next"}, w.payloads("K"))
	w.idle(t)
	hung := "select attempts || ' ' || last_error from outbox where payload = 'hangs'"
	charged := value[string](t, h, hung)
	assert.Contains(t, charged, forwarder.ErrPublishTimeout.Error()+" after 1s")
	close(goOn)
	w.publish(t, "orders", "K", "last")
	w.arrives(t, "last")
	assert.Equal(t, charged, value[string](t, h, hung))
}

// TestAckTimeoutIsCharged: each delivery that is not acked in time is an attempt, and the next one follows after its
// backoff. This includes deliveries that are not received in time, and late acks: attempts may exceed the deliveries
// received, but never fall below them.
func TestAckTimeoutIsCharged(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout, cfg.Concurrency, cfg.MaxAttempts = 100*time.Millisecond, 100, -1
	messages, err := newSubscriber(t, h, cfg).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	h.publish(t, "orders", "", numbered("", 1, 100)...)
	deliveries := map[string]int{}
	deadline := time.After(patience)
	for settled := 0; settled < 100; {
		select {
		case msg := <-messages:
			d, ok := core.DeliveryFrom(msg.Context())
			require.True(t, ok)
			deliveries[msg.UUID]++
			require.GreaterOrEqual(t, d.Attempt, deliveries[msg.UUID], "a delivery was not charged")
			if d.Attempt > 1 {
				msg.Ack()
			}
		case <-time.After(20 * time.Millisecond): // nothing more yet: check whether all have arrived
			settled = h.count(t, "select count(*) from outbox where published_at is not null")
		case <-deadline:
			t.Fatalf("%d of 100 are settled", settled)
		}
	}
	assert.Len(t, deliveries, 100)
	assert.Equal(t, []string{forwarder.ErrPublishTimeout.Error() + " after 100ms"},
		column[string](t, h, "select distinct last_error from outbox"))
}

// TestPublisherThatHeedsItsTimeout returns its context's error. The timeout is classified and charged once, whichever
// is noticed first.
func TestPublisherThatHeedsItsTimeout(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout = 50 * time.Millisecond
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	judged, slow := make(chan error, 100), make(chan struct{})
	var calls atomic.Int32
	cfg.Classify = func(err error) forwarder.Verdict {
		judged <- err
		if calls.Add(1) == 1 {
			<-slow
		}
		if !errors.Is(err, forwarder.ErrPublishTimeout) {
			return forwarder.Unavailable
		}
		return forwarder.Retry
	}
	startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		<-msg.Context().Done()
		return msg.Context().Err()
	})
	answer := sync.OnceFunc(func() { close(slow) })
	defer answer()
	h.publish(t, "orders", "K", "1")
	for range 2 {
		require.ErrorIs(t, within(t, "an error is judged", judged), forwarder.ErrPublishTimeout)
	}
	const charged = "select count(*) from outbox where attempts = 1 and last_error = $1"
	eventually(t, func() bool { return h.count(t, charged, forwarder.ErrPublishTimeout.Error()+" after 50ms") == 1 },
		"it is charged")
	answer()
	h.publish(t, "orders", "L", "2")
	h.reaches(t, 2, "so is the next one", "select count(*) from outbox where attempts > 0")
	assert.Equal(t, 2, h.count(t, "select sum(attempts)::int from outbox"), "it was charged twice")
}

// TestStopWaitsForTheVerdict on a timeout: none of the user's code runs after Run has returned.
func TestStopWaitsForTheVerdict(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout, cfg.CloseTimeout = 50*time.Millisecond, 2*patience
	judging, slow := make(chan struct{}, 100), make(chan struct{})
	answer := sync.OnceFunc(func() { close(slow) })
	defer answer()
	cfg.Classify = func(error) forwarder.Verdict {
		judging <- struct{}{}
		<-slow
		return forwarder.Retry
	}
	broker, timedOut := newFakeBroker(), make(chan struct{})
	broker.answers(func(_ string, msg *message.Message) error {
		<-timedOut
		return nil // so that Classify is called for the timeout only
	})
	_, stop := inTurn(t, h, broker, cfg, newLogCapture(t))
	h.publish(t, "orders", "K", "1")
	within(t, "the timeout is classified", judging)
	close(timedOut)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	h.reaches(t, 0, "it has released all lanes", "select count(*) from outbox_lanes where owner is not null")
	select {
	case <-stopped:
		t.Error("it has stopped")
	case <-time.After(100 * time.Millisecond):
	}
	answer()
	within(t, "it stops", stopped)
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where published_at is not null"))
}

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
			within(t, "the message's context ends", msg.Context().Done())
		}
		receive(t, messages).Ack()
		h.reaches(t, 3, "all are settled",
			"select count(*) from outbox where topic = 'orders' and published_at is not null")
		assert.Equal(t, outbox.ErrNacked.Error(), value[string](t, h, "select last_error from outbox where attempts = 2"))
		assert.Equal(t, 1, h.count(t, "select count(*) from outbox where published_at is null"))
	})
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
	within(t, "the message's context ends", msg.Context().Done())
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
