package integration_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
)

// work takes some time, and now and then much longer.
func work(*message.Message, string) error {
	time.Sleep(rand.N(3 * time.Millisecond))
	return nil
}

// TestInboundOrderUnderRebalance: one member after another joins the group and leaves it as soon as some messages are
// handled. Members that come and go faster than the group rebalances would starve a partition that is being assigned.
func TestInboundOrderUnderRebalance(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"range", "sticky", "cooperative"} {
		t.Run(strategy, func(t *testing.T) {
			if strategy != "range" {
				extended(t)
			}
			t.Parallel()
			w := newInboundWorld(t, 4)
			w.send(rounds(1200, 60_000), 200)
			c := w.config()
			c.Strategy = strategy
			c.ManualCommit = strategy == "sticky"
			slow := func(*message.Message, string) error {
				time.Sleep(rand.N(30 * time.Millisecond))
				return nil
			}
			w.serve(c, slow)
			joined := 0
			for ; w.handled() < w.settled; joined++ {
				s := w.serve(c, slow)
				w.await(min(w.handled()+100, w.settled))
				s.close()
			}
			w.verify()
			t.Logf("%d members came and went", joined)
		})
	}
}

// TestInboundControlWithoutKeys is the negative control: without keys the same handlers see messages out of order.
func TestInboundControlWithoutKeys(t *testing.T) {
	extended(t)
	onEachBroker(t, 1, func(t *testing.T, w *inboundWorld) {
		w.send(1000, 20)
		c := w.config()
		c.Unordered = true
		w.serve(c, work)
		w.await(w.settled)
		assert.NotZero(t, w.disorder(), "without keys the order was kept: the tests of the order prove nothing")
	})
}
