package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

var (
	errDown      = errors.New("broker is down")
	errMalformed = errors.New("malformed")
)

func classify(err error) forwarder.Verdict {
	switch {
	case errors.Is(err, errDown):
		return forwarder.Unavailable
	case errors.Is(err, errMalformed):
		return forwarder.Permanent
	}
	return forwarder.Retry
}

func classifyingConfig() forwarder.Config {
	cfg := quickConfig()
	cfg.Classify = classify
	return cfg
}

// TestRejectedMessageIsTriedAgain: the first message of a key is refused three times. It is retried, the rest of its
// key follows in order, and another key does not wait.
func TestRejectedMessageIsTriedAgain(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, quickConfig())
		w.answers(func(_ string, msg *message.Message) error {
			if n := w.triedTimes("1"); string(msg.Payload) == "1" && n < 4 {
				return fmt.Errorf("attempt %d: \x00 %w", n, errRefused)
			}
			return nil
		})
		w.publish(t, "orders", "K", "1", "2", "3")
		w.publish(t, "orders", "L", "4")
		w.arrives(t, "3", "4")
		assert.Equal(t, 4, w.triedTimes("1"))
		assert.Equal(t, []string{"1", "2", "3"}, w.payloads("K"))
		h.reaches(t, 4, "all are settled", "select count(*) from outbox where published_at is not null")
		assert.Equal(t, 3, h.count(t, "select sum(attempts)::int from outbox"))
		assert.Equal(t, "attempt 3: \ufffd refused", value[string](t, h, "select last_error from outbox where attempts > 0"))
	})
}

func TestPublisherThatPanics(t *testing.T) {
	h := onPgx(t)
	var attempts atomic.Int32
	w := startForwarderOn(t, h, quickConfig(), func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "1" && attempts.Add(1) < 3 {
			panic("no")
		}
		return nil
	})
	w.publish(t, "orders", "K", "1", "2")
	w.arrives(t, "2")
	assert.Equal(t, []string{"1", "2"}, w.payloads("K"))
	assert.Equal(t, "forwarder: publisher panicked: panic: no",
		value[string](t, h, "select last_error from outbox where attempts > 0"))
	eventually(t, func() bool { return w.log.count("error: publisher panicked") == 2 }, "the panics are reported")
}

// TestLockedRow: an open transaction on one message does not prevent others from being settled.
func TestLockedRow(t *testing.T) {
	h := onPgx(t)
	h.publish(t, "orders", "", numbered("", 1, 50)...)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "select from outbox where id = 17 for update")
	require.NoError(t, err)
	cfg := quickConfig()
	cfg.QueryTimeout = 5 * time.Second // also bounds the statements of the start, on a busy machine
	startForwarder(t, h, cfg)
	const pending = "select count(*) from outbox where published_at is null"
	eventually(t, func() bool { return h.count(t, pending) == 1 }, "all but one are settled")
	require.NoError(t, tx.Rollback(t.Context()))
	eventually(t, func() bool { return h.count(t, pending) == 0 }, "and so is the locked one")
}
