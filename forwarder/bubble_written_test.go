package forwarder

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

// A statement whose response is lost may have been executed, so the forwarder does not know which state the database
// has. It writes its state again, even if that is by then the last one whose writing was confirmed.

func TestAResumedTopicIsWrittenAfterALostResponse(t *testing.T) {
	testLostResponse(t, "pauses", 30*time.Second, func(string, string) error {
		return &PublishError{Verdict: Unavailable, Err: errAway}
	}, func(s *bubbleServer) bool { return slices.Equal(s.paused, []string{"topic-0"}) })
}

func TestFactsAreWrittenAfterALostResponse(t *testing.T) {
	const longerThanPublishTimeout = 50 * time.Second
	testLostResponse(t, "tell", 45*time.Second, func(string, string) error {
		time.Sleep(longerThanPublishTimeout)
		return nil
	}, func(s *bubbleServer) bool {
		var f facts.Forwarder
		return json.Unmarshal([]byte(s.facts), &f) == nil && f.Hung == 1
	})
}

// testLostResponse runs a forwarder whose broker fails at first, while a statement gets no response. The trouble must
// be in the database then, and no longer after the broker has recovered.
func testLostResponse(
	t *testing.T, statement string, after time.Duration, fails func(key, uuid string) error,
	troubled func(*bubbleServer) bool,
) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{
			t: t, ctx: t.Context(), began: time.Now(), topics: 1, server: newBubbleServer(), broker: &bubbleBroker{},
		}
		b.servers = []*bubbleServer{b.server}
		recorded := func() bool {
			b.server.mu.Lock()
			defer b.server.mu.Unlock()
			return troubled(b.server)
		}
		b.server.transaction(func(tx *modeldb.Tx) { insertMessage(tx, "topic-0", "key-0", 0) }, func() {})
		b.broker.set(fails)
		b.forward(0, 0)
		f := b.forwarders[0]
		f.pool.setUnanswered(statement)
		time.Sleep(after)
		if !recorded() {
			t.Error("the database does not have the trouble")
		}
		b.broker.set(nil)
		time.Sleep(bubbleLiveness)
		if n := b.pending(); n > 0 {
			t.Errorf("%d messages are pending", n)
		}
		f.pool.setUnanswered("")
		time.Sleep(bubbleLiveness)
		if recorded() {
			t.Error("the database still has the trouble")
		}
		f.stop()
		f.pool.stragglers.Wait()
	})
}
