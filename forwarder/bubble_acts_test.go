package forwarder

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

// TestKeysGoOnAfterAnAct: an operator discards a message that failed, and one whose topic is paused. The messages
// behind them are published without waiting for the next look for rows changed by hand.
func TestKeysGoOnAfterAnAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, ctx: t.Context(), began: time.Now(), topics: 2, broker: &bubbleBroker{}}
		b.server = newBubbleServer()
		b.servers = []*bubbleServer{b.server}
		verdicts := map[string]Verdict{"fails/1": Retry, "waits/1": Unavailable}
		b.server.transaction(func(tx *modeldb.Tx) {
			insertMessage(tx, "topic-0", "fails", 1)
			insertMessage(tx, "topic-1", "waits", 1)
			insertMessage(tx, "topic-0", "fails", 2)
			insertMessage(tx, "topic-0", "waits", 2)
		}, func() {})
		b.broker.set(func(_, uuid string) error {
			if verdict, fails := verdicts[uuid]; fails {
				return &PublishError{Verdict: verdict, Err: errors.New("refused")}
			}
			return nil
		})
		bf, never := b.on(b.server, 0), outbox.Backoff{Initial: time.Hour, Max: time.Hour}
		f, err := New(bf.db, &bubblePublisher{b.broker, bf.pool}, Config{
			Backoff: never, OutageBackoff: never, CleanInterval: time.Hour, check: unchecked,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		stop := b.supervise(f.Run, func() {})
		time.Sleep(5 * time.Second)
		if n := b.pending(); n != 4 {
			t.Fatalf("%d messages are pending: both keys should wait", n)
		}
		b.server.discard("fails/1", "waits/1")
		(*core.DB)(bf.db).WakeAfterAct()
		time.Sleep(5 * time.Second)
		if n := b.pending(); n > 0 {
			t.Errorf("%d messages are pending after an act", n)
		}
		stop()
		bf.pool.stragglers.Wait()
	})
}

// discard is an operator's act.
func (s *bubbleServer) discard(uuids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock()
	for _, r := range s.db.Rows() {
		if slices.Contains(uuids, r.UUID) {
			s.db.SettlePublished([]modeldb.Settled{{ID: r.ID}}, s.db.Life(), 0, false)
		}
	}
}
