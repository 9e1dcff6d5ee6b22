package dispatch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// sendAgain requeues messages in one act.
func (d *desk) sendAgain(ids ...int64) {
	for _, id := range ids {
		m := d.table[id]
		m.dead, m.attempts, m.untried, m.due, m.act = false, 1, true, d.now, m.act+"1"
	}
}

// A message is charged for no attempt before its requeue: not if its topic is unreachable, and not under the next owner
// of its lane.
func TestRequeuedMessageGetsAllAttempts(t *testing.T) {
	for _, key := range []string{"", "k"} {
		d := newDesk(t, dispatch.Config{})
		d.put(0, key, "a", 1)
		d.table[1].dead = true
		d.read()
		d.sendAgain(1)
		for attempt := 1; attempt <= 3; attempt++ {
			for _, v := range []dispatch.Verdict{dispatch.Unavailable, dispatch.Retry} {
				d.take(0)
				var c *dispatch.Call
				for range 5 {
					d.tick(time.Minute)
					d.read()
					if c = d.next(); c != nil {
						break
					}
				}
				if c == nil || c.Attempt != attempt {
					t.Fatalf("key %q: %+v, want attempt %d", key, c, attempt)
				}
				d.returned(c, v)
				d.settle()
			}
			if n := d.table[1].attempts; n != attempt {
				t.Fatalf("key %q: %d attempts, want %d", key, n, attempt)
			}
		}
	}
}

// Messages that an operator requeues while their topic is closed precede messages written to it since, even if they
// exceed one read.
func TestRequeuedWhileItsTopicIsClosed(t *testing.T) {
	const keys = 10
	for closed, topic := range map[string]struct{ close, open func(d *desk) }{
		"by an operator": {func(d *desk) { d.pause("a") }, func(d *desk) { d.pause() }},
		"unreachable": {
			func(d *desk) { d.returned(d.next(99), dispatch.Unavailable) },
			func(d *desk) { d.tick(time.Second) },
		},
	} {
		t.Run(closed, func(t *testing.T) {
			d := newDesk(t, dispatch.Config{Rows: 8})
			for k := range int64(keys) {
				d.put(0, fmt.Sprint("k", k), "a", k+1)
				d.table[k+1].dead = true
			}
			d.put(0, "", "a", 99)
			d.read()
			topic.close(d)
			d.sendAgain(ids(1, keys)...)
			for k := range int64(keys / 2) {
				d.put(0, fmt.Sprint("k", k), "a", 100+k)
			}
			d.rarely = true
			d.read()
			topic.open(d)
			for k := range int64(keys) {
				d.put(0, fmt.Sprint("k", k), "a", 100+k)
			}
			sent := d.drain()
			for k := range int64(keys) {
				if first, second := slices.Index(sent, k+1), slices.Index(sent, 100+k); first < 0 || second < first {
					t.Fatalf("published %v", sent)
				}
			}
		})
	}
}

// A requeued message of a topic that is closed blocks its key on the other topics as soon as a poll has seen it.
func TestRequeuedOfAClosedTopicBlocksItsKey(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1)
	d.table[1].dead = true
	d.read()
	d.pause("a")
	d.sendAgain(1)
	d.read()
	d.put(0, "x", "b", 2)
	d.put(0, "y", "b", 3)
	d.want(d.drain(), 3)
	d.pause()
	d.want(d.drain(), 1, 2)
}

// An operator requeues a message that has just died, and a read sees that before the answer comes that it is dead: it
// still blocks its key.
func TestRequeuedBeforeItsDeathIsKnown(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	d.read()
	d.returned(d.next(1), dispatch.Permanent)
	_, failed := d.b.Results(1000)
	d.sendAgain(1)
	a := d.begin()
	r := d.answer(a)
	r.Due[0].Large = true // rows that block their keys come without payload
	d.finish(a, r)
	d.b.Settled(d.now, nil, []dispatch.Outcome{{Failure: failed[0], Kind: dispatch.Dead}})
	d.after()
	d.rarely = true
	d.want(d.drain(), 1, 2)
}

// A recheck of blocked rows that began before an operator requeued one does not unblock its key, because a read has
// returned the message since.
func TestRecheckThatBeganBeforeARequeue(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1)
	d.table[1].dead = true
	d.read()
	d.pause("a")
	d.sendAgain(1)
	d.read()
	d.read()
	d.tick(time.Second)
	began := d.now // the message is dead again
	d.tick(time.Second)
	d.sendAgain(1)
	d.read()
	d.b.BlockedSeen(d.now, began, d.terms[0], 0, 1000, nil)
	d.after()
	d.put(0, "x", "b", 2)
	d.act("glance", nil)
	d.none()
	d.pause()
	d.want(d.drain(), 1, 2)
}

// A requeued message of a closed topic that waits for a lower one of its key is not due: reads would follow each other,
// and a drain would never end.
func TestRequeuedBehindAWaitingRowIsQuiet(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1, 2)
	d.table[2].dead = true // discarded
	d.pause("a")
	d.read()
	d.sendAgain(2)
	for range 5 {
		d.read()
		d.b.ReadAllDue()
	}
	d.read()
	if quiet, paused := d.b.QuietButPaused(); !quiet || !slices.Equal(paused, []string{"a"}) {
		t.Errorf("quiet is %t, paused %v", quiet, paused)
	}
	d.pause()
	d.want(d.drain(), 1, 2)
}

// A poll sees messages that an operator requeues while a topic is paused for unknown errors: messages written since
// then follow them.
func TestRequeuedWhileTheBreakerIsOpen(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 8})
	for id := range int64(5) {
		d.put(0, fmt.Sprint("k", id), "a", id+1)
		d.table[id+1].dead = true
	}
	d.breaks("a", 11, 5)
	d.sendAgain(ids(1, 5)...)
	d.read()
	d.rarely = true
	for id := range int64(5) {
		d.put(0, fmt.Sprint("k", id), "a", id+21)
	}
	d.read()
	d.tick(time.Minute)
	sent := d.drain()
	for id := range int64(5) {
		if first, second := slices.Index(sent, id+1), slices.Index(sent, id+21); first < 0 || second < first {
			t.Fatalf("published %v", sent)
		}
	}
}

// Messages written after the topic was resumed, but before requeued ones are known, wait for these too.
func TestRequeuedBeforeItsTopicWasResumed(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 8})
	d.rarely = true
	for id := range int64(10) {
		d.put(0, fmt.Sprint("k", id), "a", id+1)
		d.table[id+1].dead = true
	}
	d.read()
	d.pause("a")
	d.read() // the last before it is resumed
	d.sendAgain(ids(1, 10)...)
	d.pause()
	for id := range int64(10) {
		d.put(0, fmt.Sprint("k", id), "a", id+11)
	}
	sent := d.drain()
	for id := range int64(10) {
		if first, second := slices.Index(sent, id+1), slices.Index(sent, id+11); first < 0 || second < first {
			t.Fatalf("published %v", sent)
		}
	}
}

// A requeued message does not wait for due messages of other keys that have no room.
func TestRequeuedBesideLargeMessages(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 6, 10, 16)
	d.put(0, "l", "a", 7, 8)
	for _, m := range d.table {
		m.due = d.now
	}
	d.sendAgain(16)
	d.table[16].due = d.now.Add(time.Second)
	d.tick(time.Second)
	for range 10 {
		a := d.begin()
		r := d.answer(a)
		for _, row := range r.Due {
			row.Large = row.Attempts == 0
		}
		late := map[int64]bool{}
		for i, row := range d.b.WantedPayloads(a, &r) {
			row.Large, late[row.ID] = i > 0, i > 0
		}
		r.RemoveLarge(late)
		d.finish(a, r)
		if c := d.next(); c != nil {
			d.returned(c, dispatch.OK)
			d.settle()
		}
		d.tick(time.Second)
	}
	if len(d.sent) < 5 {
		t.Fatalf("published %v", d.sent)
	}
}

// Rows without room do not hide requeued messages that were read after them.
func TestLateMessagesHideNoRequeued(t *testing.T) {
	r := dispatch.Read{Due: []*dispatch.Row{
		{ID: 1, Key: "k", Large: true}, {ID: 2, Key: "l"}, {ID: 3, Key: "m", Attempts: 1},
	}}
	if r.RemoveLarge(map[int64]bool{1: true}); len(r.Due) != 1 || r.Due[0].ID != 3 || !r.DueLate {
		t.Fatalf("%+v", r)
	}
}

// A message that was discarded and requeued before its turn waits for the lower ones of its key, wherever these are: in
// memory, deferred with the key or for a topic, or not read yet.
func TestDiscardedAndRequeued(t *testing.T) {
	t.Run("in memory", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{})
		d.put(0, "k", "a", ids(1, 10)...)
		d.read()
		c := d.next(1)
		d.sendAgain(7)
		d.read()
		d.returned(c, dispatch.OK)
		d.want(d.drain(), ids(2, 10)...)
	})
	t.Run("deferred", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{KeyRows: 4})
		d.put(0, "k", "a", ids(1, 30)...)
		d.read()
		c := d.next(1)
		d.sendAgain(17)
		d.read()
		d.returned(c, dispatch.OK)
		d.want(d.drain(), ids(2, 30)...)
	})
	t.Run("not read", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{Rows: 4})
		d.put(0, "k", "a", ids(1, 30)...)
		d.read()
		c := d.next(1)
		d.sendAgain(17)
		d.read()
		d.returned(c, dispatch.OK)
		d.want(d.drain(), ids(2, 30)...)
	})
	t.Run("on a closed topic", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{})
		d.pause("b")
		d.put(0, "k", "b", 1)
		d.put(0, "k", "a", 2, 3, 4)
		d.read()
		d.sendAgain(3)
		d.want(d.drain())
		d.pause()
		d.want(d.drain(), 1, 2, 3, 4)
	})
	t.Run("after a change of owners", func(t *testing.T) {
		d := newDesk(t, dispatch.Config{Rows: 4})
		d.put(0, "k", "a", ids(1, 30)...)
		d.sendAgain(17)
		d.take(0)
		d.want(d.drain(), ids(1, 30)...)
	})
}

// A topic that has opened again waits until a read has seen all due rows. So due rows get the room for payloads before
// the deferred rows that wait for them: otherwise each would wait for the other forever. Row 2 is on another topic, and
// waits because row 1 has the same key.
func TestRowsThatWaitForDueRowsNeedNoPayload(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 20})
	d.put(0, "k", "c", 1)
	d.put(0, "k", "b", 2)
	d.put(0, "l", "c", 3, 4)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.read()
	d.tick(time.Second)
	d.read()
	d.returned(d.next(3), dispatch.OK)
	d.settle()
	for n := range int64(20) {
		d.put(0, "", "a", 10+n)
		d.table[10+n].due = d.now
	}
	a := d.begin()
	r := d.answer(a)
	for _, row := range slices.Concat(r.Caught, r.Due) {
		row.Large = true
	}
	if len(r.Caught) != 3 || int64(len(r.Due)) != a.Due[0] {
		t.Fatalf("read %d deferred rows and %d due rows", len(r.Caught), len(r.Due))
	}
	if wanted := d.b.WantedPayloads(a, &r); !slices.Equal(wanted, r.Due) {
		t.Errorf("more due rows may follow: the payloads of %v are wanted", rowIDs(wanted))
	}
	r = dispatch.Read{DueRead: true, Caught: r.Caught, Due: r.Due[1:]}
	if wanted := d.b.WantedPayloads(a, &r); !slices.Equal(wanted, slices.Concat(r.Caught, r.Due)) {
		t.Errorf("all due rows are known: the payloads of %v are wanted", rowIDs(wanted))
	}
}
