package dispatch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// gone reports to the dispatcher which rows that keys wait for no longer exist.
func (d *desk) gone(want ...int64) {
	d.t.Helper()
	firsts := d.b.WaitingIDs(d.terms[0])
	slices.Sort(firsts)
	if !slices.Equal(firsts, want) {
		d.t.Fatalf("keys wait for %v, want %v", firsts, want)
	}
	d.b.WaitingGone(d.now, d.terms[0], slices.DeleteFunc(firsts, func(id int64) bool { return d.table[id] != nil }))
	d.after()
}

// An operator deletes a key's row in memory of a slow topic, while another key has the only slot to wait: the key's
// rows on another topic continue.
func TestFirstMessageThatHasNoPlaceIsGone(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1, Deferred: 1})
	d.put(0, "", "slow", 7)
	d.put(0, "k", "slow", 8)
	d.put(0, "k", "up", 9)
	d.read()
	d.next(7)
	d.tick(2 * time.Second) // it is slow now, and rows in memory wait for it
	d.put(0, "other", "slow", 10)
	d.read()
	delete(d.table, 8)
	d.gone(8, 10)
	d.want(d.drain(), 9)
}

// An operator deletes the row that a key waits for: the key's other rows, on another topic, continue.
func TestKeyWhoseFirstMessageIsGone(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	for i, key := range []string{"x", "y"} {
		d.put(0, key, "down", int64(10*i+1), int64(10*i+2))
		d.put(0, key, "up", int64(10*i+3))
	}
	d.read()
	x, y := d.next(1), d.next(11)
	d.returned(x, dispatch.Unavailable)
	d.returned(y, dispatch.Unavailable)
	delete(d.table, 1)
	d.gone(1, 11)
	d.want(d.drain())
	delete(d.table, 2)
	d.gone(2, 11)
	d.want(d.drain(), 3)
	delete(d.table, 11)
	d.gone(11)
	d.want(d.drain())
	d.gone(12)
}

// The same for a row in memory, one of the few of a topic whose publishes hang.
func TestKeyWhoseFirstMessageIsGoneFromAHungTopic(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1})
	d.put(0, "", "hung", 1)
	d.put(0, "x", "hung", 2)
	d.put(0, "x", "up", 3)
	d.read()
	d.next(1)
	d.tick(time.Second)
	d.gone(2)
	d.want(d.drain())
	delete(d.table, 2)
	d.gone(2)
	d.want(d.drain(), 3)
}

// Rows of the key that were deferred because of the topic do not wait for it either.
func TestKeyWhoseFirstMessageIsGoneGoesOn(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 1})
	d.put(0, "x", "down", 1)
	d.put(0, "x", "up", 2, 3)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.put(0, "x", "up", 4)
	d.want(d.drain())
	delete(d.table, 1)
	d.gone(1)
	d.want(d.drain(), 2, 3, 4)
}

// They also continue when the topic's probe finds the message gone before anything else notices, while others wait for
// the topic.
func TestKeyWhoseTrialIsGoneGoesOn(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 1})
	d.put(0, "x", "down", 1)
	d.put(0, "x", "up", 2)
	d.put(0, "y", "down", 3)
	d.read()
	x, y := d.next(1), d.next(3)
	d.returned(x, dispatch.Unavailable)
	d.returned(y, dispatch.Unavailable)
	delete(d.table, 1)
	d.want(d.outage(), 2)
}

// outage lets four minutes pass in which topic down is unreachable, and returns the published ids.
func (d *desk) outage() []int64 {
	d.t.Helper()
	d.sent = nil
	for range 4 {
		d.tick(time.Minute)
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			if c.Row.Topic == "down" {
				d.returned(c, dispatch.Unavailable)
			} else {
				d.returned(c, dispatch.OK)
			}
		}
	}
	return d.sent
}

// They also continue when an operator has requeued the message, which blocks the key, and then deletes it.
func TestKeyWhoseRetryIsGoneGoesOn(t *testing.T) {
	// of two keys, the one with the blocked row is never chosen for a probe
	for _, others := range [][]string{{"y"}, {"y", "z"}} {
		d := newDesk(t, dispatch.Config{KeyRows: 1})
		d.put(0, "x", "down", 1)
		d.put(0, "x", "up", 2)
		for i, key := range others {
			d.put(0, key, "down", int64(3+i))
		}
		d.read()
		for _, c := range []*dispatch.Call{d.next(1), d.next(), d.next()} {
			if c != nil {
				d.returned(c, dispatch.Unavailable)
			}
		}
		m := d.table[1]
		m.attempts, m.due, m.act = 1, d.now, "1"
		d.want(d.outage())
		delete(d.table, 1)
		d.b.BlockedSeen(d.now, d.now, d.terms[0], 0, 1000, nil)
		d.after()
		d.want(d.outage(), 2)
	}
}

// A probe that is published while an operator pauses its topic lets the rows behind it continue when the topic is open.
func TestKeyWhoseTrialIsPublishedGoesOn(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 1})
	d.put(0, "x", "down", 1)
	d.put(0, "x", "up", 2)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.tick(time.Minute)
	d.read()
	c := d.next(1)
	d.pause("down")
	d.returned(c, dispatch.OK)
	d.settle()
	d.want(d.drain(), 2)
}

// A row with a lower id, on an open topic, is read while its key waits for a closed topic and has no free slot: it
// takes the slot of the key's last row.
func TestLowerMessageTakesThePlace(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 5)
	d.read()
	d.returned(d.next(5), dispatch.Unavailable)
	d.put(0, "x", "up", 3)
	d.marks[0] = 2
	d.read()
	d.want(d.outage(), 3)
	d.sent = nil
	d.tick(time.Minute)
	d.want(d.drain(), 5)
}

// No slot is free for a key's rows: 2, whose topic is closed, and 3, whose topic works. An operator discards 2. Nothing
// notices that, but 3 is read again.
func TestKeyWhoseFirstIsGoneIsReadAgain(t *testing.T) {
	d := newDesk(t, dispatch.Config{Deferred: 1})
	d.put(0, "x", "down", 1)
	d.put(0, "y", "down", 2)
	d.put(0, "y", "up", 3)
	d.read()
	x, y := d.next(1), d.next(2)
	d.returned(x, dispatch.Unavailable)
	d.returned(y, dispatch.Unavailable)
	delete(d.table, 2)
	d.want(d.outage(), 3) // in its turn to probe the topic
}

// TestRowsOfATopicThatCatchesUp: while a topic that is open again catches up, rows that were read for the first time
// follow the deferred ones of their keys, even of keys for which there was no place to wait.
func TestRowsOfATopicThatCatchesUp(t *testing.T) {
	d := newDesk(t, dispatch.Config{Deferred: 1, Rows: 8})
	d.pause("a")
	for id := range int64(20) {
		d.put(0, fmt.Sprint("k", id), "a", id+1)
	}
	d.read()
	d.read()
	d.read()
	d.pause()
	for id := range int64(20) {
		d.put(0, fmt.Sprint("k", 19-id), "a", id+21)
	}
	sent := d.drain()
	for id := range int64(20) {
		if first, second := slices.Index(sent, id+1), slices.Index(sent, 40-id); first < 0 || second < first {
			t.Fatalf("published %v", sent)
		}
	}
}
