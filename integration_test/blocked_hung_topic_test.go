package integration_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
)

// TestHungTopicStopsNoOther: publishes of one topic hang: as many as Concurrency allows, and more wait. Another topic
// continues, and so does the hung one once its publishes return.
func TestHungTopicStopsNoOther(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	for name, timeout := range map[string]time.Duration{
		"without a time-out": -1, "after their time-out": 50 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			h := newPgxHandle(t, newMigratedDatabase(t))
			cfg := quickConfig()
			cfg.Concurrency, cfg.ReadAhead, cfg.PublishTimeout = 4, 100, timeout
			goOn := make(chan struct{})
			answer := sync.OnceFunc(func() { close(goOn) })
			defer answer()
			w := startForwarderOn(t, h, cfg, func(topic string, msg *message.Message) error {
				if topic == "hangs" {
					<-goOn
				}
				return nil
			})
			hanging := numbered("h", 1, 500) // more than are read ahead
			w.publish(t, "hangs", "", hanging...)
			w.wait(t, "publishes hang", func() bool { return tried(w, hanging) >= 4 })
			for n := range 20 {
				w.publish(t, "well", "K", itoa(n))
			}
			w.arrives(t, numbered("", 0, 19)...)
			assert.Equal(t, numbered("", 0, 19), w.payloads("K"))
			answer()
			w.arrives(t, hanging...)
		})
	}
}
