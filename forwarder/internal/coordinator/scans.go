package coordinator

import (
	"math"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Position is how far a scan of a lane has come.
type Position struct {
	Assignment lanes.Assignment
	Cursor     int64 // seen up to here
	Upto       int64 // end of the current step
}

// Positions returns where a scan of the lanes that are read begins, by lane number.
func (c *Coordinator) Positions() (at []Position) {
	for n, l := range c.lanes {
		if l.Epoch != 0 && l.State == Reading {
			at = append(at, Position{Assignment: lanes.Assignment{Lane: int16(n), Epoch: l.Epoch}})
		}
	}
	return at
}

// NextSpans sets how far a sweep may go: up to the cursor, and at most span ids at a time. It leaves out lanes that are
// done, or no longer read.
func (c *Coordinator) NextSpans(at []Position, span int64) (left []Position) {
	for _, p := range at {
		if cursor, epoch := c.cursors.At(p.Assignment.Lane); epoch == p.Assignment.Epoch && p.Cursor < cursor {
			p.Upto = min(cursor, p.Cursor+span)
			left = append(left, p)
		}
	}
	return left
}

// Swept applies rows that are pending between the cursors and Upto, by lane and ascending, and moves the cursors. limit
// is the maximum number of rows of a lane.
func (c *Coordinator) Swept(at []Position, found map[int16][]dispatch.Orphan, limit int) {
	for i := range at {
		p := &at[i]
		rows := found[p.Assignment.Lane]
		if p.Cursor = p.Upto; len(rows) == limit {
			p.Cursor = rows[limit-1].ID
		}
		c.dispatcher.Orphans(p.Assignment, rows)
	}
}

// BlockedSeen compares the blocked keys with pages of the rows that block them, read from begun on and above the
// cursors. limit is the maximum number of rows of a lane. It returns the lanes that are not done.
func (c *Coordinator) BlockedSeen(
	now, begun time.Time, at []Position, pages map[int16][]dispatch.BlockedRow, limit int,
) (left []Position) {
	for _, p := range at {
		page, to := pages[p.Assignment.Lane], int64(math.MaxInt64)
		if len(page) == limit {
			to = page[limit-1].ID
		}
		c.dispatcher.BlockedSeen(now, begun, p.Assignment, p.Cursor, to, page)
		if p.Cursor = to; to != math.MaxInt64 {
			left = append(left, p)
		}
	}
	return left
}

// WaitingIDs returns the rows behind which keys of a lane wait for a paused topic.
func (c *Coordinator) WaitingIDs(t lanes.Assignment) []int64 { return c.dispatcher.WaitingIDs(t) }

// WaitingGone handles those of these rows that are no longer pending.
func (c *Coordinator) WaitingGone(now time.Time, t lanes.Assignment, gone []int64) {
	c.dispatcher.WaitingGone(now, t, gone)
}
