package machine

import (
	"math"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Position is where a walk through a lane stands.
type Position struct {
	Term   lanes.Term
	Cursor int64 // seen up to here
	Upto   int64 // what to look at now
}

// Positions looks where a walk through the lanes that are read begins, in their order.
func (m *Machine) Positions() (at []Position) {
	for n, l := range m.lanes {
		if l.Epoch != 0 && l.State == Reading {
			at = append(at, Position{Term: lanes.Term{Lane: int16(n), Epoch: l.Epoch}})
		}
	}
	return at
}

// Marks looks how far a sweep may go: up to the mark, and at most span ids at once. It leaves out lanes that are swept,
// or not read any more.
func (m *Machine) Marks(at []Position, span int64) (left []Position) {
	for _, p := range at {
		if mark, epoch := m.window.Mark(p.Term.Lane); epoch == p.Term.Epoch && p.Cursor < mark {
			p.Upto = min(mark, p.Cursor+span)
			left = append(left, p)
		}
	}
	return left
}

// Swept takes rows that are pending between the cursors and Upto, by lane and ascending, and moves the cursors. limit
// is how many of a lane there are at most.
func (m *Machine) Swept(at []Position, found map[int16][]board.Stray, limit int) {
	for i := range at {
		p := &at[i]
		rows := found[p.Term.Lane]
		if p.Cursor = p.Upto; len(rows) == limit {
			p.Cursor = rows[limit-1].ID
		}
		m.board.Strays(p.Term, rows)
	}
}

// HeadsSeen compares the keys that are blocked with pages of the rows that block them, read from begun on and above the
// cursors. limit is how many of a lane there are at most. It returns the lanes that are not done.
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

// Firsts looks what keys of a lane wait for that wait for a paused topic.
func (m *Machine) Firsts(t lanes.Term) []int64 { return m.board.Firsts(t) }

// FirstsGone takes those of them that are not pending any more.
func (m *Machine) FirstsGone(now time.Time, t lanes.Term, gone []int64) {
	m.board.FirstsGone(now, t, gone)
}
