package dispatch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// A row that was committed later with a lower id precedes rows of its key in memory, even if their topic hangs.
func TestLowerIDsGoFirst(t *testing.T) {
	for _, when := range []string{"before the topic is slow", "later"} {
		t.Run(when, func(t *testing.T) {
			d := newDesk(t, dispatch.Config{Concurrency: 1})
			d.put(0, "", "hung", 1)
			d.put(0, "x", "hung", 5)
			d.put(0, "x", "up", 6)
			d.read()
			d.next(1)
			if when == "later" {
				d.tick(time.Second)
			}
			d.put(0, "x", "up", 2, 4)
			d.marks[0] = 1
			d.read()
			d.tick(time.Second)
			d.want(d.drain(), 2, 4)
		})
	}
}

// Rows with lower ids do not lengthen the queue of a key, and large ones are fetched again.
func TestLowerIDsHaveNoOtherRoom(t *testing.T) {
	for _, large := range []bool{false, true} {
		d := newDesk(t, dispatch.Config{KeyRows: 2})
		d.put(0, "x", "a", 3, 4, 5)
		d.read()
		c := d.next(3)
		d.put(0, "x", "a", 6)
		d.read()
		d.put(0, "x", "a", 1, 2)
		d.marks[0] = 0
		a := d.begin()
		r := d.answer(a)
		r.Ready[1].Large = large
		d.finish(a, r)
		if n := d.b.Counts().Rows; n > 3 {
			t.Fatalf("%d rows in memory, want at most one in flight and two waiting", n)
		}
		d.returned(c, dispatch.OK)
		d.want(d.drain(), 1, 2, 4, 5, 6)
	}
}

// A probe that may not be published yet leaves memory. Rows with lower ids, and rows that arrive in the meantime,
// continue.
func TestProbesThatMayNotGo(t *testing.T) {
	t.Run("an operator pauses the topic", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{})
		d.put(0, "x", "down", 1)
		d.put(0, "x", "up", 2)
		d.read()
		d.returned(d.next(1), dispatch.Unavailable)
		d.tick(time.Second)
		d.read() // the probe is in memory
		d.pause("down")
		d.tick(0)
		delete(d.table, 1)
		d.gone(1)
		d.want(d.drain(), 2)
	})
	t.Run("the topic hangs", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{Concurrency: 1, PublishTimeout: time.Second})
		d.put(0, "", "down", 1)
		d.put(0, "x", "down", 3)
		d.read()
		c := d.next(1)
		d.tick(time.Second)
		d.timesOut(dispatch.Unavailable) // it is paused, and has no slot for a probe
		d.tick(time.Minute)
		if _, read := d.b.NextTimes(); !read.IsZero() {
			t.Fatal("a read is wanted for the probe")
		}
		d.read()
		d.put(0, "x", "up", 2)
		d.marks[0] = 1
		d.want(d.drain(), 2)
		d.returned(c, dispatch.Unavailable) // late
		if _, read := d.b.NextTimes(); read.IsZero() {
			t.Fatal("no read is wanted for the probe")
		}
		d.read()
		probe := d.next()
		if probe == nil || probe.Row.Topic != "down" {
			t.Fatalf("%+v is tried", probe)
		}
	})
	t.Run("a message that failed before", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{Concurrency: 1, PublishTimeout: time.Second})
		d.put(0, "x", "down", 1)
		d.read()
		d.returned(d.next(1), dispatch.Retry)
		d.settle()
		d.tick(2 * time.Second)
		d.read()
		c := d.next(1)
		d.tick(time.Second)
		d.timesOut(dispatch.Unavailable)
		d.tick(time.Minute)
		d.read()
		d.reports = nil
		d.returned(c, dispatch.Unavailable) // late: there is a slot again
		d.read()
		d.next(1)
		d.told()
	})
	t.Run("the topic is no longer paused", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{})
		d.put(0, "x", "down", 1)
		d.put(0, "", "down", 2)
		d.read()
		d.returned(d.next(1), dispatch.Unavailable)
		d.tick(time.Second)
		d.read()
		d.pause("down")
		d.tick(time.Second)
		d.want(d.drain())
		d.pause()
		d.tick(0)
		d.read()
		d.returned(d.next(), dispatch.OK)
		if got := len(d.drain()) + 1; got != 2 {
			t.Fatalf("%d are published, want 2", got)
		}
	})
}

// A row with a lower id and a closed topic blocks later ones, as if it had been read before.
func TestLowerIDsOfAClosedTopic(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "up", 3, 4, 5)
	d.read()
	c := d.next(3)
	d.pause("held")
	d.put(0, "x", "held", 1)
	d.marks[0] = 0
	d.read()
	d.returned(c, dispatch.OK)
	d.want(d.drain())
	d.pause()
	d.want(d.drain(), 1, 4, 5)
}

// TestExhaustedTopicIsReported: every minute, even while the topic is paused, because only a restart ends its state.
func TestExhaustedTopicIsReported(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1, PublishTimeout: time.Second})
	d.put(0, "", "down", 1)
	d.read()
	d.next(1)
	d.tick(time.Second)
	d.timesOut(dispatch.Unavailable)
	d.reports = nil
	d.tick(time.Minute)
	d.told(dispatch.TopicPaused, dispatch.TopicExhausted)
}

// A row that falls due while lower rows of its key are not read yet follows them. Rows without a key wait for nothing.
func TestWhatFallsDueWaitsForABacklog(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 8})
	for id := range int64(40) {
		d.put(0, fmt.Sprint("k", id), "a", id+1)
	}
	d.put(0, "x", "a", 50, 51, 52)
	d.put(0, "", "a", 53)
	d.table[51].due, d.table[53].due = d.now, d.now
	sent := d.drain()
	if len(sent) != 44 || slices.Index(sent, 51) < slices.Index(sent, 50) {
		t.Fatalf("published %v", sent)
	}
	if slices.Index(sent, 53) > 20 {
		t.Fatalf("a row without a key waits for a backlog: published %v", sent)
	}
}

// A row takes its place when it falls due: by due time, behind existing rows.
func TestWhatFallsDueGoesBehind(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1, 2, 3, 5, 6)
	d.table[1].due, d.table[3].due, d.table[2].due = d.now, d.now.Add(time.Second), d.now.Add(2*time.Second)
	d.read()
	c := d.next(5)
	d.tick(3 * time.Second)
	d.returned(c, dispatch.OK)
	d.settle()
	d.want(d.drain(), 6, 1, 3, 2)
}
