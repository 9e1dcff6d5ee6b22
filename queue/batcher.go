package queue

import (
	"runtime"
	"slices"
	"sync"
)

// batchSize is the number of items that are written together.
const batchSize = 1000

// batcher writes concurrent items together: a batch holds the items that arrived during the previous one. It runs a
// goroutine only while it writes.
type batcher[T comparable] struct {
	write func(batch []T)
	room  int // limit of waiting items; 0 = none

	mu      sync.Mutex
	changed *sync.Cond
	waiting []T
	writing bool
	closed  bool
}

func newBatcher[T comparable](room int, write func([]T)) *batcher[T] {
	b := &batcher[T]{write: write, room: room}
	b.changed = sync.NewCond(&b.mu)
	return b
}

// add blocks while the batcher is full. It does nothing after close.
func (b *batcher[T]) add(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.room > 0 && len(b.waiting) >= b.room && !b.closed {
		b.changed.Wait()
	}
	if b.closed {
		return
	}
	if b.waiting = append(b.waiting, item); !b.writing {
		b.writing = true
		go b.run()
	}
}

// remove withdraws an item, unless it was written or is being written.
func (b *batcher[T]) remove(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = slices.DeleteFunc(b.waiting, func(other T) bool { return other == item })
	b.changed.Broadcast()
}

func (b *batcher[T]) run() {
	runtime.Gosched() // others may be about to join
	for batch := b.next(); len(batch) > 0; batch = b.next() {
		b.write(batch)
	}
}

func (b *batcher[T]) next() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), batchSize)
	batch := slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	b.writing = n > 0
	b.changed.Broadcast()
	return batch
}

// close returns when all items are written.
func (b *batcher[T]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.writing {
		b.changed.Wait()
	}
	b.closed = true
	b.changed.Broadcast()
}
