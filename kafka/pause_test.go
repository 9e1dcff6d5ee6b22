package kafka

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// lastState keeps the last state that it received.
type lastState struct {
	observe.Observer
	mu    sync.Mutex
	state meter.PartitionState
}

func (l *lastState) PartitionState(_ context.Context, state meter.PartitionState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = state
}

func (l *lastState) get() meter.PartitionState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// hangs configures a partition that is paused by a single unfinished message.
func hangs(seen *lastState) func(*SubscriberConfig) {
	return func(cfg *SubscriberConfig) {
		cfg.Concurrency, cfg.MaxAhead, cfg.Observers = 1, 2, []observe.Observer{seen}
	}
}

// TestHungHandlersAreReported: a partition is reported if its handlers never return, but not if they are slow.
func TestHungHandlersAreReported(t *testing.T) {
	t.Parallel()
	seen := &lastState{}
	bubble(t, hangs(seen), func(w *world) {
		c := newClaim(0, 0)
		w.claim(c)
		for i := range 10 {
			c.send(int64(i), "", fmt.Sprint(i))
		}
		for range 3 { // slow, but working
			time.Sleep(4 * time.Minute)
			w.one().Ack()
		}
		time.Sleep(4 * time.Minute)
		if lines := w.errors(); len(lines) != 0 || seen.get().Paused != meter.PausedByHandlers {
			t.Fatalf("slow handlers: %q, paused by %q", lines, seen.get().Paused)
		}
		if blocked, _ := w.sub.reports.Blocked(); len(blocked) != 0 {
			t.Errorf("Doctor gets slow handlers: %+v", blocked)
		}
		time.Sleep(time.Minute + 2*time.Second)
		lines := w.errors()
		if len(lines) != 1 || !strings.HasPrefix(lines[0], "messages wait, and no handler has returned") {
			t.Errorf("the log has %q", lines)
		}
		if by := seen.get().Paused; by != meter.PausedByHungHandlers {
			t.Errorf("observers see it paused by %q", by)
		}
		if blocked, _ := w.sub.reports.Blocked(); len(blocked) != 1 || !blocked[0].Hung {
			t.Errorf("Doctor gets %+v", blocked)
		}
		w.one().Ack()
		time.Sleep(2 * time.Second)
		if by := seen.get().Paused; by == meter.PausedByHungHandlers {
			t.Error("the handlers still count as hung after one returned")
		}
	})
}

// TestHungHandlersAreReportedBelowTheLimits: they are reported as soon as other messages wait for them, not when
// MaxAhead messages do.
func TestHungHandlersAreReportedBelowTheLimits(t *testing.T) {
	t.Parallel()
	seen := &lastState{}
	few := func(cfg *SubscriberConfig) { cfg.Concurrency, cfg.Observers = 1, []observe.Observer{seen} }
	bubble(t, few, func(w *world) {
		c := newClaim(0, 0)
		w.claim(c)
		c.send(0, "", "0")
		time.Sleep(10 * time.Minute)
		if by := seen.get().Paused; by != "" {
			t.Errorf("paused by %q although nothing waits", by)
		}
		c.send(1, "", "1")
		time.Sleep(2 * time.Second)
		if state := seen.get(); state.Paused != meter.PausedByHungHandlers || state.PausedFor < 5*time.Minute {
			t.Errorf("paused by %q for %s", state.Paused, state.PausedFor)
		}
		const want = "messages wait, and no handler has returned"
		if lines := w.errors(); len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
			t.Errorf("the log has %q", lines)
		}
		w.one().Ack()
		time.Sleep(2 * time.Second)
		if by := seen.get().Paused; by != "" {
			t.Errorf("paused by %q after the handler returned", by)
		}
		w.one().Ack()
	})
}

// TestLagGrowsWhileItIsPaused: sarama fetches nothing from a paused partition, so it does not learn where it ends.
func TestLagGrowsWhileItIsPaused(t *testing.T) {
	t.Parallel()
	seen := &lastState{}
	bubble(t, hangs(seen), func(w *world) {
		request := 0
		w.m.lastOffset = func(topic string, partition int32, at int64) (int64, error) {
			if topic != "topic" || partition != 3 || at != sarama.OffsetNewest {
				t.Errorf("requested %s %d %d", topic, partition, at)
			}
			if request++; request == 2 {
				return 0, sarama.ErrOutOfBrokers
			}
			return 5000 + int64(request), nil
		}
		c := newClaim(3, 0)
		w.claim(c)
		time.Sleep(time.Minute)
		if request != 0 || seen.get().Lag != 1000 {
			t.Fatalf("the end was requested %d times although the partition is read: lag %d", request, seen.get().Lag)
		}
		for i := range 3 {
			c.send(int64(i), "", "")
		}
		time.Sleep(2500 * time.Millisecond)
		if lag := seen.get().Lag; lag != 5001 {
			t.Errorf("lag %d, want 5001", lag)
		}
		time.Sleep(10 * time.Second)
		if lag := seen.get().Lag; lag != 5003 || request != 3 {
			t.Errorf("lag %d after %d requests", lag, request)
		}
	})
}
