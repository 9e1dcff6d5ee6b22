package board

import "slices"

// ids is a set of ids, in ascending order.
type ids []int64

func (s ids) len() int { return len(s) }

func (s ids) lowest() int64 { return s[0] }

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
