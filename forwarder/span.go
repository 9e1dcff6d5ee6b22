package forwarder

import (
	"cmp"
	"slices"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

const (
	leastSpan = 64 // rows; fewer are not worth a separate statement
	widestGap = 16 // ids between two rows of a span
	manyRows  = 16 // minimum number of rows for each id that is left out
)

// span is a range of ids that are all settled, except the listed ones: scanning it costs a half or a third of looking
// up each id. It may contain ids that no read has seen yet, of transactions that commit later, so each id between the
// ends either belongs to one of our rows or is left out.
type span struct {
	lo, hi int64
	out    []int64
	rows   int64
}

// spanOf finds the longest span in rows that were published in one incarnation, and returns the rows outside it.
// Requeued rows are never in a span.
func spanOf(all []*board.Row) (s span, rest []*board.Row) {
	var rows, again []*board.Row
	for _, r := range all {
		if r.Generation == "" {
			rows = append(rows, r)
		} else {
			again = append(again, r)
		}
	}
	slices.SortFunc(rows, func(a, b *board.Row) int { return cmp.Compare(a.ID, b.ID) })
	from, to, first := 0, 0, 0
	for i := range rows {
		if i+1 < len(rows) && rows[i+1].ID-rows[i].ID <= widestGap+1 {
			continue
		}
		if i+1-first > to-from {
			from, to = first, i+1
		}
		first = i + 1
	}
	if to-from < leastSpan {
		return span{}, all
	}
	s = span{lo: rows[from].ID, hi: rows[to-1].ID, out: []int64{}}
	next := s.lo
	for _, r := range rows[from:to] {
		for ; next < r.ID; next++ {
			s.out = append(s.out, next)
		}
		next = r.ID + 1
	}
	s.rows = s.hi - s.lo + 1 - int64(len(s.out)) // a row that was published twice counts once
	if s.rows < int64(manyRows*len(s.out)) {
		return span{}, all
	}
	return s, slices.Concat(rows[:from], rows[to:], again)
}
