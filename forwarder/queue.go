package forwarder

import (
	"slices"
)

// queue holds the rows that may be published, first in first out. Those that were held take turns with the
// others, so that many keys that recover at once do not make healthy ones wait for all of them.
type queue struct {
	fresh, held fifo
	turn        bool
}

func (q *queue) push(r *row) {
	if r.held {
		q.held.push(r)
	} else {
		q.fresh.push(r)
	}
}

func (q *queue) pop() *row {
	first, second := &q.fresh, &q.held
	if q.turn = !q.turn; q.turn {
		first, second = second, first
	}
	if r := first.pop(); r != nil {
		return r
	}
	return second.pop()
}

func (q *queue) len() int { return q.fresh.len() + q.held.len() }

func (q *queue) drop(gone func(*row) bool) {
	q.fresh.drop(gone)
	q.held.drop(gone)
}

// fifo is a first-in first-out queue of rows.
type fifo struct {
	rows []*row
	head int
}

func (q *fifo) push(r *row) { q.rows = append(q.rows, r) }

func (q *fifo) pop() *row {
	if q.head == len(q.rows) {
		q.rows, q.head = q.rows[:0], 0
		return nil
	}
	r := q.rows[q.head]
	q.rows[q.head] = nil
	q.head++
	if q.head > 1024 && q.head*2 > len(q.rows) {
		n := copy(q.rows, q.rows[q.head:])
		clear(q.rows[n:])
		q.rows, q.head = q.rows[:n], 0
	}
	return r
}

func (q *fifo) len() int { return len(q.rows) - q.head }

func (q *fifo) drop(gone func(*row) bool) {
	q.rows = slices.DeleteFunc(q.rows[q.head:], gone)
	q.head = 0
}
