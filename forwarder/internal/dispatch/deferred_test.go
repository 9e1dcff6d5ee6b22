package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// A row that is gone when its payload is fetched does not stop its key: the next read gets the rows behind it.
func TestRowGoneBeforeItsPayload(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 2})
	d.put(0, "k", "a", ids(1, 6)...)
	d.read()
	d.returned(d.next(1), dispatch.OK)
	d.returned(d.next(2), dispatch.OK)
	d.settle()
	a := d.begin()
	r := d.answer(a)
	for _, row := range r.Caught {
		row.Large = row.ID == 3
	}
	delete(d.table, 3)
	r.RemoveLarge(map[int64]bool{3: true})
	d.finish(a, r)
	d.want(d.drain(), 4, 5, 6)
}

// A row whose key found no slot to wait in is not a probe: another row of its key may precede it.
func TestKeyWithoutAPlaceIsNoProbe(t *testing.T) {
	d := newDesk(t, dispatch.Config{Deferred: 1})
	d.put(0, "x", "down", 1)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.put(0, "y", "down", 2)
	d.read()
	d.told(dispatch.TopicPaused, dispatch.TooManyWaiting)
	delete(d.table, 1)
	d.gone(1)
	d.read()
	d.put(0, "y", "down", 3)
	d.read()
	d.tick(time.Second)
	d.want(d.drain(), 2, 3)
}

// If too many keys wait, rows of a waiting key on another topic do not wait for those on the closed one, and are
// published in order.
func TestKeysBeyondTheBound(t *testing.T) {
	d := newDesk(t, dispatch.Config{Deferred: 2})
	d.put(0, "x", "down", 1)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	for i := range int64(5) {
		key := fmt.Sprint("y", i)
		d.put(0, key, "down", 10*i+11)
		d.put(0, key, "up", 10*i+12)
		d.put(0, key, "down", 10*i+13)
	}
	d.want(d.drain(), 22, 32, 42, 52) // y0 has found a slot
	if c := d.b.Counts(); c.Waiting != 2 || c.Rows != 0 {
		t.Fatalf("%+v", c)
	}
	d.tick(time.Second)
	sent := d.drain()
	at := map[int64]int{}
	for i, id := range sent {
		at[id] = i
	}
	for i := range int64(5) {
		if at[10*i+11] > at[10*i+13] || i == 0 && (at[11] > at[12] || at[12] > at[13]) {
			t.Fatalf("published %v", sent)
		}
	}
	if len(sent) != 12 || d.b.Counts() != (dispatch.Counts{}) {
		t.Fatalf("published %v, %+v", sent, d.b.Counts())
	}
}

// Delayed rows of blocked keys that fill a read are not read again immediately, nor when a key continues.
func TestDelayedRowsOfBlockedKeys(t *testing.T) {
	const keys = 30
	d := newDesk(t, dispatch.Config{Rows: 8, Deferred: 64})
	d.rarely = true
	for n := range int64(keys) {
		key, id := fmt.Sprint("k", n), 4*n+1
		d.put(0, key, "a", id)
		d.read()
		d.returned(d.next(id), dispatch.Retry)
		d.settle()
		for delayed := id + 1; delayed < id+4; delayed++ {
			d.put(0, key, "a", delayed)
			d.table[delayed].due = d.now
		}
	}
	d.rarely = false
	for i := range 10 {
		if p := d.read(); i > 5 && (p.ManyDue || p.More) {
			t.Fatalf("read %d: %+v", i, p)
		}
	}
	d.tick(time.Second)
	d.rarely = true
	d.read()
	d.returned(d.next(1), dispatch.OK)
	d.settle()
	if a := d.begin(); a.WantDue {
		t.Fatal("a read of due rows is wanted")
	}
}

// However many delayed rows a blocked key has, they do not hide those of other keys, and they continue with their key.
func TestDelayedRowsOfABlockedKeyHideNoOther(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 8, Deferred: 64})
	d.put(0, "x", "a", ids(1, 60)...)
	d.put(0, "y", "a", 61)
	for id := range d.table {
		if id > 1 {
			d.table[id].due = d.now
		}
	}
	d.table[61].due = d.now.Add(time.Millisecond)
	d.rarely = true
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.rarely = false
	d.tick(10 * time.Millisecond)
	for range 10 {
		d.read()
	}
	d.returned(d.next(61), dispatch.OK)
	d.settle()
	d.tick(time.Second)
	d.want(d.drain(), ids(1, 60)...)
}

// Delayed rows of a topic that is paused for unknown errors do not hide those of other topics, and continue when it is
// open.
func TestDelayedRowsOfAnOpenBreakerHideNoOther(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 8, Concurrency: 8, Deferred: 64})
	d.want(d.breaks("a", 101, 5), 101, 102, 103, 104)
	for id := range int64(60) {
		d.put(0, fmt.Sprint("x", id), "a", id+1)
		d.table[id+1].due = d.now
	}
	d.put(0, "y", "b", 61)
	d.table[61].due = d.now.Add(time.Millisecond)
	d.tick(10 * time.Millisecond)
	for range 10 {
		d.read()
	}
	d.returned(d.next(61), dispatch.OK)
	d.settle()
	d.tick(time.Minute)
	if d.drain(); len(d.table) != 0 {
		t.Fatalf("%d rows are left", len(d.table))
	}
}

// A key that continues while a read leaves out its delayed rows is read again.
func TestAKeyGoesOnWhileItsDelayedRowsAreLeftOut(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 8, Deferred: 64})
	d.put(0, "x", "a", ids(1, 20)...)
	for id := range d.table {
		if id > 1 {
			d.table[id].due = d.now
		}
	}
	d.rarely = true
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.rarely = false
	for range 5 {
		d.read()
	}
	a := d.begin()
	r := d.answer(a)
	delete(d.table, 1)
	d.tick(time.Millisecond)
	d.b.BlockedSeen(d.now, d.now, d.terms[0], 0, 100, nil) // an operator has discarded the blocked row
	d.finish(a, r)
	d.notQuiet(2)
	d.want(d.drain(), ids(2, 20)...)
}
