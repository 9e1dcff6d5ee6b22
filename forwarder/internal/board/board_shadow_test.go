package board_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// A key with more rows than may be parked goes to the shadow, and its lane is read again once they are used up.
func TestKeyWithTooManyRows(t *testing.T) {
	d := newDesk(t, board.Config{Chain: 2, KeyParked: 5})
	d.put(0, "k", "a", ids(1, 30)...)
	d.put(0, "other", "a", 31, 32)
	d.read()
	d.told(board.Shadowed)
	if c := d.b.Counts(); c.Parked != 5 {
		t.Fatalf("%+v", c)
	}
	var got, other []int64
	for _, id := range d.drain() {
		if id > 30 {
			other = append(other, id)
		} else {
			got = append(got, id)
		}
	}
	d.want(got, ids(1, 30)...)
	d.want(other, 31, 32)
	if d.read(); !d.b.Quiet() {
		t.Fatal("not quiet")
	}
}

// Once something of a key was refused, nothing new of it is kept until the lane is read again.
func TestNothingNewIsKeptOfAShadowedKey(t *testing.T) {
	d := newDesk(t, board.Config{Chain: 1, KeyParked: 1})
	d.put(0, "k", "a", 1, 2, 3)
	d.read()
	a := d.begin()
	d.put(0, "k", "a", 4)
	r := d.answer(a)
	d.returned(d.next(1), board.OK) // 2 may go, by its id
	d.finish(a, r)
	d.none()
	d.settle()
	d.want(d.drain(), 2, 3, 4)
}

// A topic that is dead for days leaves room for other keys that wait for a while.
func TestDeadTopicLeavesPlacesForOthers(t *testing.T) {
	d := newDesk(t, board.Config{Chain: 2, Parked: 40, Concurrency: 2})
	d.put(0, "dead0", "dead", 1)
	d.read()
	d.returned(d.next(1), board.Unavailable)
	for id := int64(2); id <= 200; id++ {
		d.put(0, fmt.Sprint("dead", id), "dead", id)
	}
	d.drain()
	if c := d.b.Counts(); c.Parked > 20 {
		t.Fatalf("%+v", c)
	}

	d.put(0, "long", "fine", ids(201, 230)...) // more than a chain holds
	d.put(0, "failing", "fine", ids(231, 235)...)
	d.read()
	var long []int64
	for i := range 300 {
		d.tick(100 * time.Millisecond)
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			switch {
			case c.Row.Topic == "dead":
				d.returned(c, board.Unavailable)
			case c.Row.ID == 231 && i < 100:
				d.returned(c, board.Retry)
			default:
				long = append(long, c.Row.ID)
				d.returned(c, board.OK)
			}
		}
		d.settle()
	}
	slices.SortStableFunc(long, func(x, y int64) int { return int(max(x, 230) - max(y, 230)) })
	d.want(long, ids(201, 235)...)

	// Another topic that pauses for a moment.
	d.put(0, "p1", "moment", 300)
	d.read()
	d.returned(d.next(300), board.Unavailable)
	for id := int64(301); id <= 340; id++ {
		d.put(0, fmt.Sprint("p", id%7), "moment", id)
	}
	moment := 0
	for range 100 {
		d.tick(100 * time.Millisecond)
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			if c.Row.Topic == "dead" {
				d.returned(c, board.Unavailable)
				continue
			}
			moment++
			d.returned(c, board.OK)
		}
		d.settle()
	}
	if moment != 41 {
		t.Fatalf("%d of 41 published beside a dead topic", moment)
	}
	d.tick(time.Hour)
	if n := len(d.drain()); n != 200 {
		t.Fatalf("%d of 200 published after the topic had recovered", n)
	}
	if d.read(); !d.b.Quiet() || d.b.Counts() != (board.Counts{}) {
		t.Fatalf("%+v", d.b.Counts())
	}
}

// Rows whose keys' bits are those of others come through after a while.
func TestFalseHit(t *testing.T) {
	d := newDesk(t, board.Config{Parked: 2})
	d.b.ShadowBits(1)
	d.put(0, "dead0", "dead", 1)
	d.read()
	d.returned(d.next(1), board.Unavailable)
	for id := int64(2); id <= 100; id++ {
		d.put(0, fmt.Sprint("dead", id), "dead", id)
	}
	d.read()
	d.put(0, "k", "fine", 101)
	d.put(0, "", "fine", 102)
	d.read()
	d.next(102)
	d.none() // all 64 bits are set
	for id := int64(4); id <= 100; id++ {
		delete(d.table, id)
	}
	d.tick(5 * time.Minute)
	d.b.Tick(d.now)
	d.read()
	d.next()
	if c := d.next(); c == nil || c.Row.ID != 101 {
		t.Fatal("row 101 waits for ever")
	}
}

// What is put back from memory has a place always: the highest ids give theirs up.
func TestRowsThatArePutBackFindAPlace(t *testing.T) {
	d := newDesk(t, board.Config{Chain: 10, Parked: 3})
	d.put(0, "k", "a", ids(1, 10)...)
	d.read()
	d.returned(d.next(1), board.Unavailable)
	if c := d.b.Counts(); c.Parked != 2 || c.Rows != 0 {
		t.Fatalf("%+v", c)
	}
	d.tick(time.Second)
	d.want(d.drain(), ids(1, 10)...)
}
