package keyed

import "time"

// Item is one message of a Window.
type Item[T any] struct {
	Pos      int64
	Value    T         // the zero value once it is done
	Failures int       // failures in a row
	Since    time.Time // time of the first of them

	size          int64
	older, newer  *Item[T]  // neighbours in the window, by position
	chain         *chain[T] // nil if it is not ordered
	next          *Item[T]  // neighbours in the chain
	queue         *queue[T] // nil if running, done, or behind another message of its key
	at            int       // index in the queue
	due           time.Time
	failing       int // index in Window.failing; -1 = not in it
	running, done bool
	deferred      bool // held, although it did not fail
}

// Key returns the key of the message while it is not done; empty if it has none.
func (it *Item[T]) Key() string {
	if it.chain == nil {
		return ""
	}
	return it.chain.key
}

// Blocked reports whether the message waits behind a failed message of its key.
func (it *Item[T]) Blocked() bool {
	return it.chain != nil && it.chain.head != it && it.chain.head.Failures > 0
}

// Behind calls fn with all messages that wait behind this one.
func (it *Item[T]) Behind(fn func(*Item[T])) {
	for next := it.next; next != nil; next = next.next {
		fn(next)
	}
}

// chain holds the unfinished messages of a key, by position. Only its head is ready, held or running.
type chain[T any] struct {
	key        string
	head, tail *Item[T]
}

// chain inserts a message into its key's chain.
func (w *Window[T]) chain(it *Item[T], key []byte) {
	c := w.chains[string(key)]
	if c == nil {
		if c = w.unused; c == nil {
			c = &chain[T]{}
		}
		w.unused = nil
		c.key, c.head, c.tail = string(key), it, it
		w.chains[c.key] = c
		it.chain = c
		w.enqueue(it)
		return
	}
	it.chain = c
	switch at := c.head; {
	case c.tail.Pos < it.Pos:
		c.tail.next = it
		c.tail = it
	case it.Pos < at.Pos && !at.running:
		w.dequeue(at)
		it.next, c.head = at, it
		w.enqueue(it)
	default:
		for at.next != nil && at.next.Pos < it.Pos {
			at = at.next
		}
		it.next, at.next = at.next, it
		if it.next == nil {
			c.tail = it
		}
	}
}

// enqueueHead enqueues a head that was running. An older message that was added meanwhile takes its place.
func (w *Window[T]) enqueueHead(it *Item[T]) {
	c := it.chain
	if c == nil || it.next == nil || it.Pos < it.next.Pos {
		w.enqueue(it)
		return
	}
	c.head = it.next
	at := c.head
	for at.next != nil && at.next.Pos < it.Pos {
		at = at.next
	}
	it.next, at.next = at.next, it
	if it.next == nil {
		c.tail = it
	}
	w.enqueue(c.head)
}

// unchain makes the next message of the key ready.
func (w *Window[T]) unchain(it *Item[T]) {
	c := it.chain
	it.chain = nil
	if c == nil {
		return
	}
	c.head, it.next = it.next, nil
	if c.head != nil {
		w.enqueue(c.head)
		return
	}
	delete(w.chains, c.key)
	*c = chain[T]{}
	w.unused = c
}
