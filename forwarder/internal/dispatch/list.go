package dispatch

import "slices"

// list is a doubly linked list whose links are in its elements, so that elements can be removed from the middle without
// allocations. An element is on one list at a time.
type list[T any, L linked[T]] struct {
	front, back *T
	n           int
}

type links[T any] struct{ prev, next *T }

type linked[T any] interface {
	*T
	at() *links[T]
}

func (c *Call) at() *links[Call]   { return &c.links }
func (k *key) at() *links[key]     { return &k.links }
func (t *topic) at() *links[topic] { return &t.links }

func (l *list[T, L]) push(x *T) {
	*L(x).at() = links[T]{prev: l.back}
	if l.back == nil {
		l.front = x
	} else {
		L(l.back).at().next = x
	}
	l.back = x
	l.n++
}

func (l *list[T, L]) remove(x *T) {
	at := L(x).at()
	if at.prev == nil {
		l.front = at.next
	} else {
		L(at.prev).at().next = at.next
	}
	if at.next == nil {
		l.back = at.prev
	} else {
		L(at.next).at().prev = at.prev
	}
	*at = links[T]{}
	l.n--
}

// ids is a set of ids, in ascending order.
type ids []int64

func (s *ids) insert(id int64) {
	if i, found := slices.BinarySearch(*s, id); !found {
		*s = slices.Insert(*s, i, id)
	}
}

func (s *ids) remove(id int64) {
	if i, found := slices.BinarySearch(*s, id); found {
		*s = slices.Delete(*s, i, i+1)
	}
	if len(*s) == 0 {
		*s = nil
	}
}
