package forwarder

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

// newCleaningBubble returns a bubble in which the first deletion of published messages takes an hour, and its Config.
func newCleaningBubble(t *testing.T, ctx context.Context) (*bubble, Config) {
	b := &bubble{
		t: t, ctx: ctx, began: time.Now(), topics: 1, server: newBubbleServer(), broker: &bubbleBroker{},
		fault: fault{0, "clean", 1, silent},
	}
	b.servers = []*bubbleServer{b.server}
	return b, Config{Topics: []string{"topic-0"}, QueryTimeout: time.Hour, CleanInterval: time.Second}
}

// runs starts a forwarder with cfg.
func (b *bubble) runs(t *testing.T, cfg Config) (stop func()) {
	f := b.on(b.server, 0)
	cfg.check = unchecked
	run, err := New(f.db, &bubblePublisher{b.broker, f.pool}, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b.supervise(run.Run, func() {})
}

// statements returns how often a forwarder has run a statement.
func (f *bubbleForwarder) statements(name string) int {
	f.pool.mu.Lock()
	defer f.pool.mu.Unlock()
	return f.pool.recallRequested[name]
}

// awaitStatement waits until a forwarder has run a statement this many times.
func (f *bubbleForwarder) awaitStatement(t *testing.T, name string, times int) {
	for begun := time.Now(); f.statements(name) < times; time.Sleep(time.Second) {
		if time.Since(begun) > 10*time.Minute {
			t.Fatalf("%q was not run %d times within 10 minutes", name, times)
		}
	}
}

// TestUnreadTopicsAreReportedDuringDeletions: deleting may take hours, for example when Retention is set for the first
// time.
func TestUnreadTopicsAreReportedDuringDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b, cfg := newCleaningBubble(t, ctx)
		stop := b.runs(t, cfg)
		defer stop()
		f := b.forwarders[0]
		f.awaitStatement(t, "clean", 1)
		f.awaitStatement(t, "unread topics", 3) // once a minute
	})
}

// TestDrainOfAGroupDoesNotWaitForACleanUp of a database that was asleep.
func TestDrainOfAGroupDoesNotWaitForACleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b, cfg := newCleaningBubble(t, ctx)
		b.groupWith(cfg)
		f := b.forwarders[0]
		defer f.stop()
		f.awaitStatement(t, "clean", 1)
		if f.statements("unread topics") == 0 {
			t.Error("it does not check for topics that no forwarder reads")
		}
		b.server.transaction(func(tx *modeldb.Tx) { insertMessage(tx, "topic-0", "key-0", 0) }, func() {})
		begun := time.Now()
		if err := f.drain(); err != nil || b.pending() > 0 {
			t.Errorf("%d messages are pending after Drain: %v", b.pending(), err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("Drain returned after %s", took)
		}
	})
}

// crowded starts a Group with one slot, which another database needs all the time. It returns the first one's
// forwarder.
func (b *bubble) crowded(t *testing.T, cfg Config) *bubbleForwarder {
	b.servers = append(b.servers, newBubbleServer())
	b.groupWith(cfg)
	busy, stop := context.WithCancel(b.ctx)
	writer := make(chan struct{})
	go func() {
		defer close(writer)
		for core.Pause(busy, 20*time.Millisecond) {
			b.servers[1].transaction(func(tx *modeldb.Tx) { insertMessage(tx, "topic-0", "key-0", 0) }, func() {})
		}
	}()
	f := b.forwarders[0]
	t.Cleanup(func() {
		stop()
		<-writer
		f.stop()
	})
	return f
}

// TestACrowdedGroupCleansUp: the first deletion hangs for a while. Its clean-up has a turn nevertheless.
func TestACrowdedGroupCleansUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b, cfg := newCleaningBubble(t, ctx)
		cfg.QueryTimeout = turn / 3
		b.crowded(t, cfg).awaitStatement(t, "clean", 1)
		time.Sleep(4 * turn)
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		if b.server.othersCleaned < 3 {
			t.Errorf("%d tables have been cleaned besides the outbox, want 3", b.server.othersCleaned)
		}
	})
}

// TestALongDeletionLeavesTimeForTheRest: each deletion takes longer than the turn of a clean-up. The inbox and the keys
// are cleaned nevertheless.
func TestALongDeletionLeavesTimeForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b, cfg := newCleaningBubble(t, ctx)
		b.fault.nth, cfg.QueryTimeout = 0, 2*turn
		f := b.crowded(t, cfg)
		f.awaitStatement(t, "clean inbox", 1)
		f.awaitStatement(t, "clean keys", 1)
	})
}

// TestDeletionStartsAgainBelowATransactionThatEnded: it was open when deletion passed the ids of its messages. While it
// is open, deleted rows stay in the index, so they are not read again before.
func TestDeletionStartsAgainBelowATransactionThatEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b, cfg := newCleaningBubble(t, ctx)
		b.fault, cfg.CleanInterval = fault{}, time.Minute
		stop := b.runs(t, cfg)
		defer stop()
		insert := func(hold time.Duration) {
			b.server.transaction(func(tx *modeldb.Tx) { insertMessage(tx, "topic-0", "key-0", 0) },
				func() { time.Sleep(hold) })
		}
		go insert(recleanInterval + recleanInterval/2)
		time.Sleep(time.Second)
		insert(0)
		time.Sleep(2 * cfg.CleanInterval) // the first deletion starts at 0
		startsAgainAt := func() (from int64) {
			b.server.mu.Lock()
			seen := len(b.server.cleanings)
			b.server.mu.Unlock()
			time.Sleep(recleanInterval + 2*cfg.CleanInterval) // it may be the last part of its round, or of the next
			b.server.mu.Lock()
			defer b.server.mu.Unlock()
			return slices.Min(b.server.cleanings[seen:])
		}
		if from := startsAgainAt(); from != 2 {
			t.Errorf("it starts again at %d, want 2: the transaction is still open", from)
		}
		if from := startsAgainAt(); from > 0 {
			t.Errorf("it starts again at %d, above the message of a transaction that ended", from)
		}
		if from := startsAgainAt(); from != 2 {
			t.Errorf("it starts again at %d, want 2", from)
		}
	})
}
