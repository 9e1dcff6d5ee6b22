package integration_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestUnavailableTopicPauses: an unreachable topic is retried one message at a time, and no attempt is charged. Another
// topic continues, and after the outage all messages are published in order.
func TestUnavailableTopicPauses(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, classifyingConfig())
		var down atomic.Bool
		down.Store(true)
		var mu sync.Mutex
		var tries []time.Time
		tried := func() int { mu.Lock(); defer mu.Unlock(); return len(tries) }
		w.answers(func(topic string, _ *message.Message) error {
			if topic == "down" && down.Load() {
				mu.Lock()
				defer mu.Unlock()
				tries = append(tries, time.Now())
				return errDown
			}
			return nil
		})
		for i := range 40 {
			w.publish(t, "down", fmt.Sprintf("key-%d", i%20), fmt.Sprintf("d%d", i))
			w.publish(t, "down", "", fmt.Sprintf("u%d", i))
		}
		eventually(t, func() bool { return w.log.count("topic unavailable: paused") > 0 }, "the topic is paused")
		before := tried()
		for i := range 40 {
			w.publish(t, "up", fmt.Sprintf("key-up-%d", i%20), fmt.Sprintf("up%d", i))
		}
		w.arrives(t, numbered("up", 0, 39)...)
		eventually(t, func() bool { return tried() >= before+7 }, "the topic is tried again")
		mu.Lock()
		last := tries[len(tries)-4:]
		mu.Unlock()
		assert.GreaterOrEqual(t, last[3].Sub(last[0]), 150*time.Millisecond,
			"three pauses, most of them 100 ms less 20%")
		assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))

		down.Store(false)
		w.arrives(t, append(numbered("d", 0, 39), numbered("u", 0, 39)...)...)
		for i := range 20 {
			var want []string
			for j := i; j < 40; j += 20 {
				want = append(want, fmt.Sprintf("d%d", j))
			}
			assert.Equal(t, want, w.payloads(fmt.Sprintf("key-%d", i)))
		}
		assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))
	})
}

// TestKeyGoesOnWithoutItsFirstMessage: the first message of a key waits for an unreachable topic until an operator
// skips, deletes or discards it. Then the rest of the key, on another topic, continues. Other keys of the same lane
// keep waiting.
func TestKeyGoesOnWithoutItsFirstMessage(t *testing.T) {
	h := onPgx(t)
	cfg := classifyingConfig()
	cfg.CleanInterval = 50 * time.Millisecond
	cfg.Concurrency = 2
	w := startForwarder(t, h, cfg)
	goOn := make(chan struct{})
	answer := sync.OnceFunc(func() { close(goOn) })
	defer answer()
	var down atomic.Bool
	down.Store(true)
	w.answers(func(topic string, _ *message.Message) error {
		switch {
		case topic == "down" && down.Load():
			return errDown
		case topic == "hangs":
			<-goOn
		}
		return nil
	})
	for _, first := range []string{"down", "hangs"} {
		keys := sameLane(t, h, first, 6)
		for i, key := range keys {
			w.publish(t, first, key, fmt.Sprint(first, i))
			w.publish(t, "up", key, fmt.Sprint("behind-", first, i))
		}
		w.publish(t, first, "", numbered(first+"-", 1, 5)...)
		w.wait(t, "the topic is tried", func() bool {
			return tried(w, append(numbered(first, 0, 5), numbered(first+"-", 1, 5)...)) >= 2
		})
		for i, act := range []string{"published_at = now()", "dead_at = now()"} {
			h.exec(t, "update outbox set "+act+" where topic = $1 and key = $2", first, keys[i+3])
		}
		h.exec(t, "delete from outbox where topic = $1 and key = $2", first, keys[5])
		w.arrives(t, numbered("behind-"+first, 3, 5)...)
		for i, key := range keys[:3] {
			assert.Empty(t, w.payloads(key), "%d continues to wait", i)
		}
	}
	down.Store(false)
	answer()
	w.arrives(t, append(numbered("behind-down", 0, 2), numbered("behind-hangs", 0, 2)...)...)
}

// TestUnavailableAfterRejection: the last message of a topic waits for a retry when the broker goes down.
func TestUnavailableAfterRejection(t *testing.T) {
	h := onPgx(t)
	cfg := classifyingConfig()
	cfg.OutageBackoff = outbox.Backoff{Initial: 50 * time.Millisecond, Max: 2 * time.Second}
	w := startForwarder(t, h, cfg)
	w.answers(func(string, *message.Message) error {
		if w.triedTimes("1") == 1 {
			return errRefused
		}
		return errDown
	})
	w.publish(t, "orders", "K", "1")
	begun := time.Now()
	eventually(t, func() bool { return w.triedTimes("1") >= 6 }, "the message is tried while the broker is down")
	assert.LessOrEqual(t, w.log.count("topic unavailable: paused"), 1+int(time.Since(begun)/time.Minute),
		"once a minute: %v", *w.log.lines)
	assert.Zero(t, w.log.count("topic available again"))
	w.answers(nil)
	w.arrives(t, "1")
	assert.Equal(t, 1, h.count(t, "select attempts from outbox"))
}
