package integration_test

import (
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

// TestLateSuccess: a publish that timed out succeeds while its message waits for the next attempt.
func TestLateSuccess(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout = 50 * time.Millisecond
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	goOn := make(chan struct{})
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "late" {
			<-goOn
		}
		return nil
	})
	w.publish(t, "orders", "K", "late", "next")
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where attempts = 1") == 1 }, "it timed out")
	close(goOn)
	w.arrives(t, "next")
	assert.Equal(t, []string{"late", "next"}, w.payloads("K"))
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 0 },
		"both are settled")
}

// TestAckTimeoutIsCharged: each delivery that is not acked in time is an attempt, and the next one follows after its
// backoff. This includes deliveries that nobody receives in time, and late acks: attempts may exceed the deliveries
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
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where attempts > 0") == 2 },
		"so is the next one")
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
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox_lanes where owner is not null") == 0 },
		"it has released all lanes")
	select {
	case <-stopped:
		t.Error("it has stopped")
	case <-time.After(100 * time.Millisecond):
	}
	answer()
	within(t, "it stops", stopped)
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where published_at is not null"))
}
