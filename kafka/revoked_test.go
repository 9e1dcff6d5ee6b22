package kafka

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
)

// counting counts unmarshalled messages.
type counting struct {
	unmarshaler
	n *atomic.Int32
}

func (c counting) Unmarshal(msg *sarama.ConsumerMessage) (*message.Message, error) {
	c.n.Add(1)
	return c.unmarshaler.Unmarshal(msg)
}

// After the session ends, no message is delivered or unmarshalled, because it would take slots from other partitions.
// Messages in flight may still be acked.
func TestNothingStartsAfterTheEnd(t *testing.T) {
	t.Parallel()
	var unmarshalled atomic.Int32
	bubble(t, func(cfg *SubscriberConfig) {
		cfg.Concurrency, cfg.Unmarshaler = 2, counting{n: &unmarshalled}
	}, func(w *world) {
		c := newClaim(0, 0)
		ended := w.claim(c)
		for i := range int64(4) {
			c.send(i, "", fmt.Sprint(i))
		}
		msg := w.next(1)[0] // the other one waits to be received
		w.lose()
		if got := w.next(9); len(got) != 0 {
			t.Fatalf("delivered %q", payloads(got))
		}
		if msg.Context().Err() != nil {
			t.Error("a rebalance must not cancel the handler")
		}
		if isClosed(ended) {
			t.Fatal("the partition did not wait for the handler")
		}
		msg.Ack()
		if !isClosed(ended) {
			t.Fatal("the partition waits although all messages are acked")
		}
		got := w.sess.take()
		want := []string{"resume 0"}
		if string(msg.Payload) == "0" {
			want = append(want, "mark 0/1")
		}
		if !slices.Equal(got, want) {
			t.Errorf("the session got %q, want %q", got, want)
		}
		if n := unmarshalled.Load(); n != 2 {
			t.Errorf("%d messages were unmarshalled, want the 2 that have slots", n)
		}
	})
}

func TestAbandonedAckMarksNothing(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(w *world) {
		c := newClaim(0, 0)
		ended := w.claim(c)
		c.send(0, "", "slow")
		msg := w.one()
		w.lose()
		time.Sleep(30*time.Second - 1)
		if isClosed(ended) {
			t.Fatal("the partition did not wait for RevokeTimeout")
		}
		time.Sleep(time.Nanosecond)
		if !isClosed(ended) {
			t.Fatal("the partition waits forever")
		}
		if msg.Context().Err() == nil {
			t.Error("the context of an abandoned message has not ended")
		}
		msg.Ack()
		w.called("resume 0")
		if lines := w.errors(); len(lines) != 1 || !strings.HasPrefix(lines[0], "handlers did not end in time") {
			t.Errorf("the log has %q", lines)
		}
		if len(w.sub.places) != 0 {
			t.Error("its slot is not free again")
		}
	})
}

// At its end the subscription ends the contexts and waits for CloseTimeout, even if a partition was revoked before.
func TestTheEndWaitsForAcks(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"owned": false, "being revoked": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(cfg *SubscriberConfig) { cfg.CloseTimeout = 7 * time.Second }, func(w *world) {
				c := newClaim(0, 0)
				ended := w.claim(c)
				c.send(0, "", "quick")
				c.send(1, "", "slow")
				msgs := w.next(2)
				if lost {
					w.lose()
					time.Sleep(time.Second)
				}
				w.close()
				if isClosed(ended) || msgs[0].Context().Err() == nil {
					t.Fatal("the subscription did not wait, or the contexts have not ended")
				}
				for _, msg := range msgs {
					if string(msg.Payload) == "quick" {
						msg.Ack()
					}
				}
				w.called("resume 0", "mark 0/1")
				time.Sleep(7*time.Second - 1)
				if isClosed(ended) {
					t.Fatal("the subscription did not wait for CloseTimeout")
				}
				if time.Sleep(time.Nanosecond); !isClosed(ended) {
					t.Fatal("the subscription waits longer than CloseTimeout")
				}
			})
		})
	}
}

// With a cooperative strategy the channel is closed behind the buffered messages, and nothing else shows that the
// partition was revoked.
func TestFullWindowStillSeesTheEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(cfg *SubscriberConfig) { cfg.MaxAhead = 10 }, func(w *world) {
		c := newClaim(0, 0)
		ended := w.claim(c)
		c.send(0, "k", "head")
		msg := w.one()
		for i := range int64(200) {
			c.send(1+i, "k", "behind")
		}
		w.called("resume 0", "pause 0")
		c.end()
		if isClosed(ended) {
			t.Fatal("the partition did not wait for the handler")
		}
		msg.Ack()
		if !isClosed(ended) {
			t.Fatal("the revocation was not noticed")
		}
		w.called("mark 0/1")
	})
}

func TestClaimResumesAtItsStart(t *testing.T) {
	t.Parallel()
	bubble(t, func(cfg *SubscriberConfig) { cfg.MaxAhead = 2 }, func(w *world) {
		c := newClaim(0, 0)
		ended := w.claim(c)
		for i := range int64(4) {
			c.send(i, "k", "")
		}
		w.called("resume 0", "pause 0")
		w.one().Ack()
		w.one().Ack()
		w.called("mark 0/1", "mark 0/2")
		w.one().Ack()
		w.called("mark 0/3", "resume 0")
		w.lose()
		<-ended
	})
}

// Without a committed offset, the first message is marked, so that after a crash reading does not start at the newest
// message again. A reset precedes the mark, because sarama ignores marks below the offset that it knows.
func TestNoMarkBeforeTheFirstRecord(t *testing.T) {
	t.Parallel()
	for _, initial := range []int64{sarama.OffsetNewest, sarama.OffsetOldest} {
		bubble(t, nil, func(w *world) {
			c := newClaim(0, initial)
			w.m.committed = func(topic string, partition int32) (int64, error) { return 5000, nil }
			w.claim(c)
			time.Sleep(time.Minute)
			w.called("resume 0")
			c.send(57, "k", "")
			w.called("reset 0/57", "mark 0/57")
			w.one().Ack()
			w.called("mark 0/58")
			if lines := w.errors(); len(lines) != 1 || !strings.HasPrefix(lines[0], "committed offset is out of range") {
				t.Errorf("the log has %q", lines)
			}
		})
	}
}

// TestOwnCommitIsNotOutOfRange: the coordinator replies only after the first message was handled and committed.
func TestOwnCommitIsNotOutOfRange(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(w *world) {
		c := newClaim(0, sarama.OffsetOldest)
		committed := make(chan int64)
		w.m.committed = func(string, int32) (int64, error) { return <-committed, nil }
		w.claim(c)
		c.send(0, "k", "")
		w.one().Ack()
		w.called("resume 0", "reset 0/0", "mark 0/0", "mark 0/1")
		committed <- 1
		synctest.Wait()
		if lines := w.errors(); len(lines) > 0 {
			t.Errorf("the log has %q", lines)
		}
	})
}

// TestEachResetOfAnOffsetIsLogged: messages deleted before they are read are lost, so each occurrence is logged. Other
// errors are logged at most once a minute.
func TestEachResetOfAnOffsetIsLogged(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(w *world) {
		for range 3 {
			w.m.logError(&sarama.ConsumerError{Topic: "t", Err: sarama.ErrOffsetOutOfRange})
			w.m.logError(&sarama.ConsumerError{Topic: "t", Err: sarama.ErrOutOfBrokers})
		}
		resets := slices.DeleteFunc(w.errors(), func(line string) bool {
			return !strings.HasPrefix(line, "messages were deleted before they were read")
		})
		if len(resets) != 3 {
			t.Errorf("the log has %q", w.errors())
		}
		if n := len(w.errors()); n != 4 {
			t.Errorf("the log has %d lines, want one about the brokers", n)
		}
	})
}

// MaxBytes covers all partitions. A partition with nothing in memory is always read.
func TestBytesAreSharedByPartitions(t *testing.T) {
	t.Parallel()
	bubble(t, func(cfg *SubscriberConfig) { cfg.MaxBytes = 1000 }, func(w *world) {
		first, second := newClaim(1, 0), newClaim(2, 0)
		w.claim(first)
		w.claim(second)
		w.called("resume 1", "resume 2")
		value := strings.Repeat("x", 500)
		first.send(0, "", value)
		first.send(1, "", value)
		held := w.next(2)
		w.called("pause 1")
		time.Sleep(3 * time.Second)
		w.called() // a partition with nothing in memory does not pause
		second.send(0, "", "small")
		msg := w.one()
		w.called("pause 2")
		msg.Ack()
		w.called("mark 2/1", "resume 2")
		second.send(1, "", "small")
		small := w.one()
		w.called("pause 2")
		for _, msg := range held {
			msg.Ack()
		}
		w.next(0)
		got := slices.DeleteFunc(w.sess.take(), func(s string) bool { return s == "mark 1/1" })
		slices.Sort(got)
		if want := []string{"mark 1/2", "resume 1", "resume 2"}; !slices.Equal(got, want) {
			t.Fatalf("the session got %q, want %q", got, want)
		}
		small.Ack()
		if used := w.sub.budget.used.Load(); used != 0 {
			w.next(0)
			if used = w.sub.budget.used.Load(); used != 0 {
				t.Errorf("%d bytes are used", used)
			}
		}
	})
}

// tracer counts the messages of claims, as tracers do.
type tracer struct {
	sarama.ConsumerGroupHandler
	seen chan int64
}

type tracedClaim struct {
	sarama.ConsumerGroupClaim
	messages chan *sarama.ConsumerMessage
}

func (c tracedClaim) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

func (h tracer) ConsumeClaim(sess sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	traced := tracedClaim{claim, make(chan *sarama.ConsumerMessage)}
	go func() { // like otelsarama, it waits forever if nothing reads
		defer close(traced.messages)
		for msg := range claim.Messages() {
			traced.messages <- msg
			h.seen <- msg.Offset
		}
		close(h.seen)
	}()
	return h.ConsumerGroupHandler.ConsumeClaim(sess, traced)
}

func TestTracerSeesEachRecordOnce(t *testing.T) {
	t.Parallel()
	bubble(t, nil, func(w *world) {
		c := newClaim(0, 0)
		traced := tracer{w.m, make(chan int64, 100)}
		for i := range int64(20) {
			c.send(i, "k", "")
		}
		w.claims.Go(func() {
			if err := traced.ConsumeClaim(w.sess, c); err != nil {
				t.Error(err)
			}
		})
		msg := w.one()
		msg.Nack()
		time.Sleep(time.Minute)
		w.one()
		w.lose()
		c.end()
		time.Sleep(time.Minute)
		n := int64(0)
		for offset := range traced.seen {
			if offset != n {
				t.Fatalf("the tracer saw %d, want %d", offset, n)
			}
			n++
		}
		if n != 20 {
			t.Errorf("the tracer saw %d messages", n)
		}
	})
}

var _ message.Subscriber = (*Subscriber)(nil)
