package integration_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/observe"
)

// TestJetStreamClose: what was acked before the end of Close is not delivered again, and the rest is handed back at
// once: AckWait is longer than this test waits.
func TestJetStreamClose(t *testing.T) {
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(1500, 1000)
	c := w.config()
	c.AckWait = time.Hour
	s := w.serve(c, work)
	w.await(500)
	standby := w.serve(c, work)
	s.close()
	done := w.handled()
	require.Less(t, done, w.settled, "all was handled before Close")
	w.await(w.settled)
	standby.close()
	w.verify()
	assert.EqualValues(t, w.settled, s.calls.Load()+standby.calls.Load(), "a handler was called for a message twice")
	info := w.consumer()
	assert.Equal(t, [2]int{0, 0}, [2]int{info.NumAckPending, int(info.NumPending)}, "messages that JetStream waits for")
}

// TestInboundBounds: no more is read than MaxAhead messages, or about MaxBytes, and what was fetched already, and then it
// goes on.
func TestInboundBounds(t *testing.T) {
	extended(t)
	t.Parallel()
	ahead := func(c *inboundConfig) { c.MaxAhead = 100 }
	for name, tt := range map[string]struct {
		nats   bool
		set    func(c *inboundConfig)
		most   int
		reason observe.PauseReason
	}{
		"Kafka, messages":     {false, ahead, 2000, observe.PausedByHandlers},
		"JetStream, messages": {true, ahead, 100, observe.PausedByHandlers},
		"JetStream, bytes": { // and two pulls
			true, func(c *inboundConfig) { c.MaxBytes = 20_000 }, 600, observe.PausedByBytes,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w *inboundWorld
			if tt.nats {
				w = newJetStreamWorld(t, natsServer(t).URL()).inboundWorld
			} else {
				w = newInboundWorld(t, 1)
			}
			w.send(2000, 1000)
			c := w.config()
			tt.set(&c)
			seen := &seenPartitions{}
			c.observers = []observe.Observer{seen}
			t.Cleanup(func() {
				if seen.mu.Lock(); t.Failed() && len(seen.all) > 0 {
					t.Logf("told at first %+v, at last %+v", seen.all[0], seen.all[len(seen.all)-1])
				}
				seen.mu.Unlock()
			})
			release := make(chan struct{})
			w.serve(c, func(*message.Message, string) error {
				<-release
				return nil
			})
			eventually(t, func() bool {
				return seen.any(func(p observe.PartitionState) bool {
					return p.Paused == tt.reason && p.Running == 16 && p.PausedFor > 2*c.AckWait && p.Lag == 2000
				})
			}, "it pauses for longer than AckWait while all places are taken, and stays the owner")
			close(release)
			w.await(w.settled)
			w.verify()
			assert.False(t, seen.any(func(p observe.PartitionState) bool { return p.Pending > tt.most }), "too much in memory")
			assert.False(t, seen.any(func(p observe.PartitionState) bool { return !p.Owned }), "it was not the owner")
		})
	}
}
