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
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// TestAllTopicsAreBackTogether: all topics of two forwarders are paused. When the broker returns, all publish again,
// whether the errors had a verdict or not. Without a verdict the outage has cost each forwarder four attempts, because
// five messages fail at once; with a verdict none.
func TestAllTopicsAreBackTogether(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	for name, failure := range map[string]error{
		"known": &forwarder.PublishError{Verdict: forwarder.Unavailable, Err: errDown}, "unknown": errOdd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPgxHandle(t, newMigratedDatabase(t))
			cfg := sharing(quickConfig())
			cfg.OutageBackoff = outbox.Backoff{Initial: 20 * time.Millisecond, Max: time.Second}
			cfg.Backoff = outbox.Backoff{Initial: time.Second} // five messages fail before any is retried
			const topics, perTopic = 20, 30
			var down atomic.Bool
			down.Store(true)
			var mu sync.Mutex
			tries := map[string]int{}
			w := startForwarderOn(t, h, cfg, func(topic string, _ *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if tries[topic]++; down.Load() {
					return failure
				}
				return nil
			})
			w.join(t, h, cfg)
			eventually(t, func() bool {
				return h.count(t, "select count(distinct owner) from outbox_lanes") == 2
			}, "they share the lanes")
			var all []string
			for i := range topics {
				var payloads []string
				for n := range perTopic {
					payloads = append(payloads, fmt.Sprint("t", i, "-", n))
				}
				all = append(all, payloads...)
				h.publish(t, fmt.Sprint("topic", i), "", payloads...)
			}
			w.wait(t, "all are paused", func() bool {
				mu.Lock()
				defer mu.Unlock()
				for i := range topics {
					if tries[fmt.Sprint("topic", i)] < 2*3 {
						return false
					}
				}
				return true
			})
			charged := 0
			if failure == errOdd {
				charged = 2 * 4
			}
			// A failure that was on its way may be counted later, after the first success.
			assert.LessOrEqual(t, h.count(t, "select coalesce(sum(attempts), 0)::int from outbox"), charged)
			down.Store(false)
			w.arrives(t, all...)
		})
	}
}
