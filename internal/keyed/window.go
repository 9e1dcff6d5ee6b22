package keyed

import (
	"container/heap"
	"time"
)

// Limits are the limits of a Window, which Full reports.
type Limits struct {
	Records int   // limit of messages above the watermark, done or not
	Bytes   int64 // limit of the size of unfinished messages; 0 = no limit
	// Forget makes the window count and keep only unfinished messages, for a source that acknowledges messages one by one.
	// Otherwise a message that keeps failing would keep all messages that were done after it in memory.
	Forget bool
}

// Retries returns how many of the slots may be used by messages that failed before: half of them, but at least one.
func Retries(places int) int { return max(1, places/2) }

// Window holds the messages from the watermark on. Create it with New.
type Window[T any] struct {
	limits         Limits
	after          int64    // the position after the highest position added
	oldest, newest *Item[T] // by position; the oldest is unfinished
	chains         map[string]*chain[T]
	unused         *chain[T] // for the next key
	fresh, again   queue[T]  // ready messages, by position: never failed, and failed
	held           queue[T]  // held messages, by due time
	failing        []*Item[T]
	records        int // failing messages, from oldest to newest
	undone         int
	bytes          int64
}

// New returns an empty Window with the watermark from.
func New[T any](limits Limits, from int64) *Window[T] {
	return &Window[T]{
		limits: limits, after: from, chains: map[string]*chain[T]{},
		fresh: queue[T]{before: byPosition[T]}, again: queue[T]{before: byPosition[T]}, held: queue[T]{before: byDue[T]},
	}
}

// Add adds a message. A message with an empty key is not ordered. It returns nil if the position is already in the
// window.
func (w *Window[T]) Add(pos int64, key []byte, size int, value T) *Item[T] {
	at := w.newest // before it in the window
	for at != nil && at.Pos > pos {
		at = at.older
	}
	if at != nil && at.Pos == pos {
		return nil
	}
	it := &Item[T]{Pos: pos, Value: value, size: int64(size), failing: -1}
	w.insert(it, at)
	w.after = max(w.after, pos+1)
	w.records++
	w.undone++
	w.bytes += it.size
	if len(key) == 0 {
		w.enqueue(it)
		return it
	}
	w.chain(it, key)
	return it
}

// insert puts an item behind another, or before all others if that is nil.
func (w *Window[T]) insert(it, at *Item[T]) {
	it.older = at
	if at == nil {
		it.newer, w.oldest = w.oldest, it
	} else {
		it.newer, at.newer = at.newer, it
	}
	if it.newer == nil {
		w.newest = it
	} else {
		it.newer.older = it
	}
}

// Wake makes held messages ready that are due.
func (w *Window[T]) Wake(now time.Time) {
	for len(w.held.items) > 0 && !w.held.items[0].due.After(now) {
		it := w.held.items[0]
		w.dequeue(it)
		it.deferred = false
		if it.Failures > 0 {
			w.push(&w.again, it)
		} else {
			w.push(&w.fresh, it)
		}
	}
}

// Due returns when the next held message is due; false if no message is held.
func (w *Window[T]) Due() (time.Time, bool) {
	if len(w.held.items) == 0 {
		return time.Time{}, false
	}
	return w.held.items[0].due, true
}

// Ready reports whether a message that never failed is ready, and whether a failed message is.
func (w *Window[T]) Ready() (fresh, again bool) {
	return len(w.fresh.items) > 0, len(w.again.items) > 0
}

// Start returns the oldest ready message, including failed ones only if again is true. It returns nil if no message is
// ready.
func (w *Window[T]) Start(again bool) *Item[T] {
	from := &w.fresh
	if again && len(w.again.items) > 0 && (len(from.items) == 0 || w.again.items[0].Pos < from.items[0].Pos) {
		from = &w.again
	}
	if len(from.items) == 0 {
		return nil
	}
	it := from.items[0]
	w.dequeue(it)
	it.running = true
	return it
}

// Hold records that a running message failed, and makes it and its key wait until due.
func (w *Window[T]) Hold(it *Item[T], now, due time.Time) {
	it.running = false
	it.Failures++
	if it.failing < 0 {
		it.Since = now
		it.failing = len(w.failing)
		w.failing = append(w.failing, it)
	}
	it.due = due
	w.enqueueHead(it)
}

// Defer makes a running message and its key wait until due, without a failure.
func (w *Window[T]) Defer(it *Item[T], due time.Time) {
	it.running = false
	it.due, it.deferred = due, true
	w.enqueueHead(it)
}

// Hurry makes a held message due now.
func (w *Window[T]) Hurry(it *Item[T], now time.Time) {
	if it.queue == &w.held && now.Before(it.due) {
		it.due = now
		heap.Fix(it.queue, it.at)
	}
}

// Done removes a running message, and makes the next message of its key ready.
func (w *Window[T]) Done(it *Item[T]) {
	var none T
	it.running, it.done, it.Value = false, true, none
	w.undone--
	w.bytes -= it.size
	w.recover(it)
	w.unchain(it)
	if w.limits.Forget {
		w.unlink(it)
		return
	}
	for w.oldest != nil && w.oldest.done {
		passed := w.oldest
		w.oldest = passed.newer
		passed.newer = nil
		w.records--
	}
	if w.oldest == nil {
		w.newest = nil
	} else {
		w.oldest.older = nil
	}
}

// unlink removes a message from the window.
func (w *Window[T]) unlink(it *Item[T]) {
	if it.older == nil {
		w.oldest = it.newer
	} else {
		it.older.newer = it.newer
	}
	if it.newer == nil {
		w.newest = it.older
	} else {
		it.newer.older = it.older
	}
	it.older, it.newer = nil, nil
	w.records--
}

// recover removes a message from the failing ones.
func (w *Window[T]) recover(it *Item[T]) {
	if it.failing < 0 {
		return
	}
	last := len(w.failing) - 1
	moved := w.failing[last]
	w.failing[it.failing], w.failing[last] = moved, nil
	moved.failing = it.failing
	w.failing = w.failing[:last]
	it.failing = -1
}

// enqueue puts a message that may be started among the ready or held ones.
func (w *Window[T]) enqueue(it *Item[T]) {
	if it.Failures > 0 || it.deferred {
		w.push(&w.held, it)
	} else {
		w.push(&w.fresh, it)
	}
}

func (w *Window[T]) push(q *queue[T], it *Item[T]) {
	it.queue = q
	heap.Push(q, it)
}

func (w *Window[T]) dequeue(it *Item[T]) {
	heap.Remove(it.queue, it.at)
	it.queue = nil
}
