package machine

import (
	"math"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Position is how far a scan of a lane has come.
type Position struct {
	Term   lanes.Term
	Cursor int64 // seen up to here
	Upto   int64 // end of the current step
}

// Positions returns where a scan of the lanes that are read begins, by lane number.
func (m *Machine) Positions() (at []Position) {
	for n, l := range m.lanes {
		if l.Epoch != 0 && l.State == Reading {
			at = append(at, Position{Term: lanes.Term{Lane: int16(n), Epoch: l.Epoch}})
		}
	}
	return at
}

// Marks sets how far a sweep may go: up to the cursor, and at most span ids at a time. It leaves out lanes that are
// done, or no longer read.
func (m *Machine) Marks(at []Position, span int64) (left []Position) {
	for _, p := range at {
		if mark, epoch := m.window.Mark(p.Term.Lane); epoch == p.Term.Epoch && p.Cursor < mark {
			p.Upto = min(mark, p.Cursor+span)
			left = append(left, p)
		}
	}
	return left
}

// Swept applies rows that are pending between the cursors and Upto, by lane and ascending, and moves the cursors. limit
// is the maximum number of rows of a lane.
func (m *Machine) Swept(at []Position, found map[int16][]board.Orphan, limit int) {
	for i := range at {
		p := &at[i]
		rows := found[p.Term.Lane]
		if p.Cursor = p.Upto; len(rows) == limit {
			p.Cursor = rows[limit-1].ID
		}
		m.board.Orphans(p.Term, rows)
	}
}

// HeadsSeen compares the blocked keys with pages of the rows that block them, read from begun on and above the cursors.
// limit is the maximum number of rows of a lane. It returns the lanes that are not done.
func (m *Machine) HeadsSeen(
	now, begun time.Time, at []Position, pages map[int16][]board.Head, limit int,
) (left []Position) {
	for _, p := range at {
		page, to := pages[p.Term.Lane], int64(math.MaxInt64)
		if len(page) == limit {
			to = page[limit-1].ID
		}
		m.board.HeadsSeen(now, begun, p.Term, p.Cursor, to, page)
		if p.Cursor = to; to != math.MaxInt64 {
			left = append(left, p)
		}
	}
	return left
}

// Firsts returns the rows behind which keys of a lane wait for a paused topic.
func (m *Machine) Firsts(t lanes.Term) []int64 { return m.board.Firsts(t) }

// FirstsGone handles those of these rows that are no longer pending.
func (m *Machine) FirstsGone(now time.Time, t lanes.Term, gone []int64) {
	m.board.FirstsGone(now, t, gone)
}
