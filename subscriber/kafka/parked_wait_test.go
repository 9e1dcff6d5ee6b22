package kafka

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

const after = 10 * time.Second

// parkingBubble is a partition that parks, whose loop is the test. Nothing reaches a database.
func parkingBubble(t *testing.T, test func(w *world, p *partition)) {
	t.Helper()
	bubble(t, nil, func(w *world) {
		w.sub.lot = &lot{subscription: w.sub, cfg: ParkConfig{After: after, MaxKeys: 1}, wake: make(chan struct{}, 1)}
		p := newPartition(w.m, w.sess, newClaim(0, 0))
		p.parking.loaded = true
		p.parking.looks = make(chan glance, 1)
		test(w, p)
		close(p.abandoned)
	})
}

// begin adds a message of a key and starts it.
func (p *partition) begin(offset int64, key string) *item {
	c := newClaim(0, 0)
	c.send(offset, key, "value")
	p.add(<-c.messages)
	p.places <- struct{}{}
	it := p.window.Oldest()
	p.start()
	return it
}

// TestRetryAfterIsKeptWhereThereIsNoRoom: a message that was hurried for the park, which has no room, waits as long as
// its handler has asked for all the same.
func TestRetryAfterIsKeptWhereThereIsNoRoom(t *testing.T) {
	t.Parallel()
	parkingBubble(t, func(w *world, p *partition) {
		it := p.begin(0, "k")
		msg := w.one()
		core.OwnBackoff(msg)(time.Hour, nil)
		msg.Nack()
		p.settle(<-p.results)
		until := time.Now().Add(time.Hour)
		time.Sleep(2 * after)
		p.paused = time.Now().Add(-after)
		p.window.Hurry(it, time.Now())
		p.lot.keys.Store(1) // another partition was first
		p.window.Wake(time.Now())
		p.retries <- struct{}{}
		p.retry = true
		p.places <- struct{}{}
		p.start()
		if n := len(w.next(1)); n != 0 {
			t.Fatal("it is delivered again at once")
		}
		if due, held := p.window.Due(); !held || !due.Equal(until) {
			t.Errorf("it is due at %v, want %v", due, until)
		}
	})
}

// TestParkedRecordKeepsItsWait: a row is nacked once for what is left of the wait, and then the database knows it.
func TestParkedRecordKeepsItsWait(t *testing.T) {
	t.Parallel()
	c := newClaim(3, 0)
	c.send(7, "k", "value")
	at := time.Unix(1_700_000_000, 5)
	payload, err := encode(record{msg: <-c.messages, notBefore: at})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := decode(payload)
	if err != nil || !rec.notBefore.Equal(at) {
		t.Fatalf("decoded %v %v", rec.notBefore, err)
	}
	row := func(attempt int) *message.Message {
		msg := message.NewMessage("u", nil)
		msg.SetContext(core.WithDelivery(context.Background(), msg, core.Delivery{Attempt: attempt}, false))
		return msg
	}
	for _, c := range []struct {
		attempt int
		now     time.Time
		want    time.Duration
	}{{1, at.Add(-time.Hour), time.Hour}, {2, at.Add(-time.Hour), 0}} {
		if got := rec.waits(row(c.attempt), c.now); got != c.want {
			t.Errorf("attempt %d waits %s, want %s", c.attempt, got, c.want)
		}
	}
	if got := rec.waits(row(1), at.Add(time.Second)); got > 0 {
		t.Errorf("waits %s after its time", got)
	}
	old := map[string]any{}
	if err := json.Unmarshal(payload, &old); err != nil {
		t.Fatal(err)
	}
	delete(old, "not_before") // as an older version, or a message that failed, has it
	payload, _ = json.Marshal(old)
	if rec, err = decode(payload); err != nil || rec.waits(row(1), at) != 0 {
		t.Errorf("a row without a time waits: %v", err)
	}
}
