package outboxtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/queue"
)

// expiring is a store in a bubble with messages of one topic, by the time after which each expires; 0 = never.
func expiring(t *testing.T, after map[string]time.Duration) (*queue.Store, func(id string) queue.Message) {
	t.Helper()
	s, err := queue.NewStore(outboxtest.NewDB(t), queue.StoreConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for id, d := range after {
		item := queue.Item{ID: queue.ID{Source: "shop", MessageID: id}, Topic: "orders"}
		if d > 0 {
			item.ExpiresAt = time.Now().Add(d)
		}
		if _, err := s.Enqueue(t.Context(), item); err != nil {
			t.Fatal(err)
		}
	}
	return s, func(id string) queue.Message {
		t.Helper()
		msg, err := s.Get(t.Context(), queue.ID{Source: "shop", MessageID: id})
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
}

// TestWhatExpiredIsNotClaimed, not even between two reapings, and not what waits for another attempt either.
func TestWhatExpiredIsNotClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, get := expiring(t, map[string]time.Duration{
			"lasting": 0, "fresh": 500 * time.Millisecond, "failed": 500 * time.Millisecond,
		})
		owner := queue.NewOwner()
		claim := func() []queue.Message {
			t.Helper()
			msgs, err := s.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 10})
			if err != nil {
				t.Fatal(err)
			}
			return msgs
		}
		if n := len(claim()); n != 3 { // which reaps, and the next one does not
			t.Fatalf("%d messages can be claimed", n)
		}
		if _, err := s.Release(t.Context(), owner, get("lasting").ID); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Abandon(t.Context(), queue.Abandon{Owner: owner, Delay: 100 * time.Millisecond},
			get("failed").ID); err != nil {
			t.Fatal(err)
		}
		late := queue.Item{
			ID: queue.ID{Source: "shop", MessageID: "late"}, Topic: "orders", ExpiresAt: time.Now().Add(time.Millisecond),
		}
		if _, err := s.Enqueue(t.Context(), late); err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Millisecond)
		if msgs := claim(); len(msgs) != 1 || msgs[0].MessageID != "lasting" {
			t.Errorf("claimed: %v", msgs)
		}
		// What somebody works on does not expire.
		if n, err := s.ReapExpired(t.Context()); err != nil || n != 2 {
			t.Errorf("%d messages were reaped, %v", n, err)
		}
		for id, want := range map[string]queue.State{
			"lasting": queue.Processing, "fresh": queue.Processing, "failed": queue.Dead, "late": queue.Dead,
		} {
			if msg := get(id); msg.State != want || want == queue.Dead && msg.LastError != "expired" {
				t.Errorf("%s is %s: %s", id, msg.State, msg.LastError)
			}
		}
		if n, err := s.Ack(t.Context(), owner, get("fresh").ID); n != 1 || err != nil {
			t.Errorf("acked %d, %v", n, err)
		}
	})
}

// TestWhatExpiredIsBuried in the order of its times, and again when it is due if OnDead fails.
func TestWhatExpiredIsBuried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, get := expiring(t, map[string]time.Duration{
			"c": 3 * time.Second, "a": time.Second, "b": 2 * time.Second, "never": 0,
		})
		taken := queue.NewOwner()
		if msgs, err := s.Claim(t.Context(), queue.Claim{Owner: taken, LeaseTTL: time.Hour, Limit: 10}); err != nil ||
			len(msgs) != 4 {
			t.Fatal(msgs, err)
		}
		if _, err := s.Release(t.Context(), taken, get("a").ID, get("b").ID, get("c").ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		var buried []string
		tries, waited := 0, time.Duration(0)
		d, err := queue.NewDispatcher(s, queue.DispatcherConfig{
			Concurrency: 1,
			Handlers: map[string]queue.Handler{"orders": {Handle: func(_ context.Context, msg *queue.Message) error {
				t.Errorf("%s was handled", msg.MessageID)
				return nil
			}}},
			OnDead: func(_ context.Context, msg *queue.Message, err error) error {
				if tries++; tries == 1 {
					return errTest
				}
				if buried = append(buried, msg.MessageID); msg.MessageID == "a" {
					waited = time.Since(began)
				}
				return nil
			},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- d.Run(t.Context()) }()
		time.Sleep(5 * time.Minute)
		if len(buried) != 3 || buried[0] != "b" || buried[1] != "c" || buried[2] != "a" || waited < time.Minute {
			t.Errorf("buried: %v, the one whose OnDead failed after %s", buried, waited)
		}
		if state := get("never").State; state != queue.Processing {
			t.Errorf("what never expires is %s", state)
		}
		if err := errors.Join(d.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
}
