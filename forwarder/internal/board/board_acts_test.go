package board_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// sendAgain has an operator requeue messages in one act.
func (d *desk) sendAgain(ids ...int64) {
	for _, id := range ids {
		m := d.table[id]
		m.dead, m.attempts, m.due, m.act = false, 1, d.now, m.act+"1"
	}
}

// What an operator requeues while he has paused its topic goes before what was written to it since, also if it is more
// than a read returns.
func TestRequeuedWhileItsTopicIsClosed(t *testing.T) {
	const keys = 10
	d := newDesk(t, board.Config{Rows: 8})
	for k := range int64(keys) {
		d.put(0, fmt.Sprint("k", k), "a", k+1)
		d.table[k+1].dead = true
	}
	d.read()
	d.pause("a")
	d.sendAgain(ids(1, keys)...)
	for k := range int64(keys) {
		d.put(0, fmt.Sprint("k", k), "a", keys+k+1)
	}
	d.rarely = true
	d.read()
	d.pause()
	sent := d.drain()
	for k := range int64(keys) {
		if first, second := slices.Index(sent, k+1), slices.Index(sent, keys+k+1); first < 0 || second < first {
			t.Fatalf("published %v", sent)
		}
	}
}

// A message that was discarded and requeued before its turn waits for the lower ones of its key, wherever these are: in
// memory, deferred with the key or for a topic, or not read yet.
func TestDiscardedAndRequeued(t *testing.T) {
	t.Run("in memory", func(t *testing.T) {
		d := newDesk(t, board.Config{})
		d.put(0, "k", "a", ids(1, 10)...)
		d.read()
		c := d.next(1)
		d.sendAgain(7)
		d.read()
		d.returned(c, board.OK)
		d.want(d.drain(), ids(2, 10)...)
	})
	t.Run("deferred", func(t *testing.T) {
		d := newDesk(t, board.Config{Chain: 4})
		d.put(0, "k", "a", ids(1, 30)...)
		d.read()
		c := d.next(1)
		d.sendAgain(17)
		d.read()
		d.returned(c, board.OK)
		d.want(d.drain(), ids(2, 30)...)
	})
	t.Run("not read", func(t *testing.T) {
		d := newDesk(t, board.Config{Rows: 4})
		d.put(0, "k", "a", ids(1, 30)...)
		d.read()
		c := d.next(1)
		d.sendAgain(17)
		d.read()
		d.returned(c, board.OK)
		d.want(d.drain(), ids(2, 30)...)
	})
	t.Run("on a closed topic", func(t *testing.T) {
		d := newDesk(t, board.Config{})
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
		d := newDesk(t, board.Config{Rows: 4})
		d.put(0, "k", "a", ids(1, 30)...)
		d.sendAgain(17)
		d.take(0)
		d.want(d.drain(), ids(1, 30)...)
	})
}
