package keyed

// queue is a heap whose items know their places.
type queue[T any] struct {
	items  []*Item[T]
	before func(a, b *Item[T]) bool
}

func byPosition[T any](a, b *Item[T]) bool { return a.Pos < b.Pos }
func byDue[T any](a, b *Item[T]) bool      { return a.due.Before(b.due) }

// Len is part of heap.Interface.
func (q *queue[T]) Len() int { return len(q.items) }

// Less is part of heap.Interface.
func (q *queue[T]) Less(i, j int) bool { return q.before(q.items[i], q.items[j]) }

// Swap is part of heap.Interface.
func (q *queue[T]) Swap(i, j int) {
	q.items[i], q.items[j] = q.items[j], q.items[i]
	q.items[i].at, q.items[j].at = i, j
}

// Push is part of heap.Interface.
func (q *queue[T]) Push(x any) {
	it, _ := x.(*Item[T])
	it.at = len(q.items)
	q.items = append(q.items, it)
}

// Pop is part of heap.Interface.
func (q *queue[T]) Pop() any {
	last := len(q.items) - 1
	it := q.items[last]
	q.items[last] = nil
	q.items = q.items[:last]
	return it
}
