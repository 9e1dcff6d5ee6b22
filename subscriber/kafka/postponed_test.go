package kafka

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
)

// TestRetryAfterInThePark: a message whose handler asked for a later retry is not called before, be it parked meanwhile
// or since, and takes no place.
func TestRetryAfterInThePark(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *SubscriberConfig) { c.Concurrency = 1 }, func(w *world) {
		rec := &sarama.ConsumerMessage{Topic: "topic", Offset: 7, Key: []byte("k"), Value: []byte("v")}
		payload, err := encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		later := func(msg *message.Message) {
			core.OwnBackoff(msg)(time.Hour, errors.New("busy"))
			msg.Nack()
		}
		claim := newClaim(0, 7)
		w.claim(claim)
		w.sub.lot = &lot{subscription: w.sub}
		deliver := func() (row *message.Message, msgs []*message.Message) {
			row = message.NewMessage(parkedUUID(w.sub.cfg.ConsumerGroup, rec), payload)
			go w.sub.lot.deliver(row)
			return row, w.next(1)
		}

		claim.messages <- rec
		later(w.one())
		for when := range 3 {
			time.Sleep(time.Hour - time.Second)
			early, msgs := deliver()
			if len(msgs) > 0 || !isClosed(early.Nacked()) || len(w.sub.places) > 0 {
				t.Fatalf("%d: called before its time: %v", when, payloads(msgs))
			}
			claim.end() // what follows is of the park alone
			time.Sleep(time.Second)
			row, msgs := deliver()
			if len(msgs) != 1 {
				t.Fatalf("%d: not called when its time has come", when)
			}
			later(msgs[0])
			if !isClosed(row.Nacked()) {
				t.Fatalf("%d: the row is not nacked", when)
			}
		}
	})
}

// TestPostponedForgets what is over, and nothing else.
func TestPostponedForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p postponed
		busy := errors.New("busy")
		p.put("now", inbound.Outcome{Verdict: inbound.Nacked})
		for n := range 10 * minPostponed {
			p.put(strconv.Itoa(n), inbound.Outcome{Verdict: inbound.Nacked, Later: time.Minute})
			time.Sleep(time.Second)
		}
		if n := len(p.known); n > 2*minPostponed {
			t.Errorf("%d are known", n)
		}
		p.put("one", inbound.Outcome{Verdict: inbound.Nacked, Later: time.Hour, Cause: busy})
		time.Sleep(time.Hour - 1)
		if early, cause := p.early("one"); !early || !errors.Is(cause, busy) {
			t.Errorf("before its time: %v, %v", early, cause)
		}
		time.Sleep(1)
		for _, uuid := range []string{"one", "one", "now", "other"} {
			if early, _ := p.early(uuid); early {
				t.Errorf("%s is early", uuid)
			}
		}
	})
}
