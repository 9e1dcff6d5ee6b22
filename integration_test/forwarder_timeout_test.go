package integration_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

func TestPublishTimeout(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.PublishTimeout = time.Second
	cfg.Concurrency = 4
	goOn := make(chan struct{})
	var attempts atomic.Int32
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "hangs" && attempts.Add(1) == 1 {
			<-goOn
			return errRefused // late, and of no interest
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

// TestLateSuccess: the publish that timed out has worked after all, while its message waits for the next attempt.
func TestLateSuccess(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
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
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 0 }, "both are settled")
}
