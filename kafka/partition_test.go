package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

func TestMarksOnlyTheWatermark(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(w *world) {
		c := newClaim(3, 10)
		w.claim(c)
		w.called("resume 3")
		for _, offset := range []int64{10, 12, 13, 20} { // with gaps
			c.send(offset, fmt.Sprint(offset), fmt.Sprint(offset))
		}
		msgs := w.next(4)
		slices.SortFunc(msgs, func(a, b *message.Message) int {
			return strings.Compare(string(a.Payload), string(b.Payload))
		})
		msgs[1].Ack()
		msgs[3].Ack()
		w.called()
		msgs[0].Ack()
		w.called("mark 3/13")
		msgs[2].Ack()
		w.called("mark 3/21")
	})
}

func TestOneKeyAfterAnother(t *testing.T) {
	t.Parallel()
	bubble(t, func(cfg *SubscriberConfig) { cfg.Concurrency = 3 }, func(w *world) {
		c := newClaim(0, 0)
		w.claim(c)
		for i, key := range []string{"a", "a", "b", "", "", "c"} {
			c.send(int64(i), key, fmt.Sprint(key, i))
		}
		msgs := w.next(9)
		if got := payloads(msgs); !slices.Equal(got, []string{"3", "a0", "b2"}) {
			t.Fatalf("delivered %q, want the oldest that is ready", got)
		}
		for _, msg := range msgs {
			if string(msg.Payload) == "a0" {
				msg.Ack()
			}
		}
		if got := payloads(w.next(9)); !slices.Equal(got, []string{"a1"}) {
			t.Fatalf("delivered %q", got)
		}
	})
}

// A nacked message blocks its key for the backoff, and is delivered again as a new message.
func TestNackedMessageIsFresh(t *testing.T) {
	t.Parallel()
	bubble(t, func(cfg *SubscriberConfig) {
		cfg.Backoff = outbox.Backoff{Func: func(n int) time.Duration { return time.Duration(n) * time.Second }}
	}, func(w *world) {
		c := newClaim(0, 0)
		w.claim(c)
		whole := []byte("valuetail")
		headers := []*sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}}
		c.messages <- &sarama.ConsumerMessage{Offset: 0, Key: []byte("k"), Value: whole[:5], Headers: headers}
		c.send(1, "k", "second")
		c.send(2, "other", "other")
		msgs := w.next(9)
		if got := payloads(msgs); !slices.Equal(got, []string{"other", "value"}) {
			t.Fatalf("delivered %q", got)
		}
		for _, msg := range msgs {
			if string(msg.Payload) == "other" {
				msg.Ack()
				continue
			}
			msg.Payload[0] = 'X'
			_ = append(msg.Payload, "XXXX"...)
			msg.Metadata.Set("h", "changed")
			ctx := msg.Context()
			msg.Nack()
			if w.next(1); ctx.Err() == nil {
				t.Error("the context of a nacked message has not ended")
			}
		}
		if string(whole) != "valuetail" {
			t.Errorf("the handler overwrote fetched bytes: %q", whole)
		}
		begun := time.Now()
		again := <-w.sub.deliverer.Messages()
		if since := time.Since(begun); since != time.Second {
			t.Errorf("delivered again after %s", since)
		}
		if string(again.Payload) != "value" || again.Metadata.Get("h") != "1" {
			t.Errorf("delivered again as %q %v", again.Payload, again.Metadata)
		}
		again.Nack()
		w.next(0)
		begun = time.Now()
		again = <-w.sub.deliverer.Messages()
		if since := time.Since(begun); since != 2*time.Second {
			t.Errorf("delivered again after %s", since)
		}
		again.Ack()
		if got := w.one(); string(got.Payload) != "second" {
			t.Errorf("delivered %q", got.Payload)
		}
		w.called("resume 0", "mark 0/1")
	})
}

// A wait requested with outbox.RetryAfter, as passed on by middleware.ErrorHandler, is kept.
func TestRetryAfterBlocksItsKeySoLong(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(w *world) {
		c := newClaim(0, 0)
		w.claim(c)
		c.send(0, "k", "later")
		msg := w.one()
		core.OwnBackoff(msg)(time.Hour, nil)
		msg.Nack()
		w.next(0)
		begun := time.Now()
		<-w.sub.deliverer.Messages()
		if since := time.Since(begun); since != time.Hour {
			t.Errorf("delivered again after %s", since)
		}
	})
}

// Even if as many keys fail slowly as there are slots, half of the slots stay free for other keys.
func TestFailingKeysLeaveHalfOfThePlaces(t *testing.T) {
	t.Parallel()
	bubble(t, func(cfg *SubscriberConfig) {
		cfg.Concurrency = 4
		cfg.Backoff = outbox.Backoff{Func: func(int) time.Duration { return time.Second }}
	}, func(w *world) {
		first, second := newClaim(0, 0), newClaim(1, 0) // they share the slots
		w.claim(first)
		w.claim(second)
		for i := range 3 {
			first.send(int64(i), fmt.Sprint("f", i), "fails")
			second.send(int64(i), fmt.Sprint("f", i), "fails")
		}
		for range 2 {
			for _, msg := range w.next(9) {
				msg.Nack()
			}
		}
		time.Sleep(time.Minute)
		stuck := w.next(9)
		if len(stuck) != 2 {
			t.Fatalf("%d failed messages have slots, want half of 4", len(stuck))
		}
		for i := range 5 {
			second.send(int64(10+i), "", "works")
			w.one().Ack()
		}
		for _, msg := range stuck {
			msg.Ack()
		}
		if got := payloads(w.next(9)); len(got) != 2 {
			t.Fatalf("then %q are delivered, want two more failed ones", got)
		}
	})
}

func TestUnmarshalErrorHoldsItsKey(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func() (*message.Message, error){
		"error":   func() (*message.Message, error) { return nil, errors.New(`invalid "secret"`) },
		"nothing": func() (*message.Message, error) { return nil, nil },
		"panic":   func() (*message.Message, error) { panic("secret") },
	} {
		t.Run(name, func(t *testing.T) {
			var mended atomic.Bool
			bubble(t, func(cfg *SubscriberConfig) { cfg.Unmarshaler = unmarshaler{bad: bad, mended: &mended} }, func(w *world) {
				c := newClaim(0, 0)
				ended := w.claim(c)
				c.send(0, "k", "bad")
				c.send(1, "k", "behind")
				c.send(2, "other", "other")
				w.one().Ack()
				if got := len(w.next(9)); got != 0 {
					t.Fatalf("%d messages behind it are delivered", got)
				}
				w.called("resume 0")
				lines := w.errors()
				if len(lines) != 1 || !strings.HasPrefix(lines[0], "message could not be unmarshalled: its key is blocked") {
					t.Errorf("the log has %q", lines)
				}
				if isClosed(ended) {
					t.Fatal("the claim ended")
				}
				mended.Store(true)
				time.Sleep(time.Second)
				w.one().Ack()
				w.one().Ack()
				w.called("mark 0/1", "mark 0/3")
			})
		})
	}
}

type unmarshaler struct {
	bad    func() (*message.Message, error)
	mended *atomic.Bool
}

func (u unmarshaler) Unmarshal(msg *sarama.ConsumerMessage) (*message.Message, error) {
	if string(msg.Value) == "bad" && !u.mended.Load() {
		return u.bad()
	}
	return message.NewMessage("", msg.Value), nil
}

// A panic in Key is recovered. The message is not delivered, because its order is unknown.
func TestKeyMayPanic(t *testing.T) {
	t.Parallel()
	var mended atomic.Bool
	bubble(t, func(cfg *SubscriberConfig) {
		cfg.Key = func(msg *sarama.ConsumerMessage) []byte {
			if string(msg.Value) == "bad" && !mended.Load() {
				panic("key")
			}
			return msg.Key
		}
	}, func(w *world) {
		c := newClaim(0, 0)
		w.claim(c)
		c.send(0, "k", "bad")
		c.send(1, "k", "behind")
		c.send(2, "other", "good")
		if msg := w.one(); string(msg.Payload) != "good" {
			t.Fatalf("delivered %q", msg.Payload)
		} else {
			msg.Ack()
		}
		if lines := w.errors(); len(lines) != 1 || !strings.HasPrefix(lines[0], "panic in Key") {
			t.Errorf("the log has %q", lines)
		}
		mended.Store(true)
		time.Sleep(time.Second)
		if msg := w.one(); string(msg.Payload) != "bad" {
			t.Errorf("delivered %q", msg.Payload)
		}
	})
}
