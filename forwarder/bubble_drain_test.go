package forwarder

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

// TestDrainWaitsForCallsThatTimedOut: such a call may still succeed while the forwarder stops, and unblock its key.
func TestDrainWaitsForCallsThatTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, ctx: t.Context(), began: time.Now(), topics: 1, broker: &bubbleBroker{}}
		b.server = newBubbleServer()
		b.servers = []*bubbleServer{b.server}
		b.server.transaction(func(tx *modeldb.Tx) {
			for n := range 10 {
				insertMessage(tx, "topic-0", "key-0", n)
			}
		}, func() {})
		bf := b.on(b.server, 0)
		first := true
		b.broker.set(func(_, uuid string) error {
			if strings.HasSuffix(uuid, "/0") && first {
				first = false
				time.Sleep(15 * time.Second)
			}
			return nil
		})
		f, err := New(bf.db, &bubblePublisher{b.broker, bf.pool}, Config{
			PublishTimeout: 10 * time.Second, Backoff: outbox.Backoff{Initial: time.Hour, Max: time.Hour}, check: unchecked,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if n := b.pending(); n > 0 {
			t.Errorf("Drain returned while %d messages are ready", n)
		}
	})
}
