package queue

import (
	"math"
	"time"
)

const (
	// HoldFor is how long the mark may be held by transactions that are open.
	HoldFor = time.Second
	// FullInterval is how often all is looked through.
	FullInterval = time.Second
	fullShare    = 20 // a full look takes at most this part of the time
)

// Position is a place in the order in which rows are claimed: of ready ones At is 0.
type Position struct {
	At int64 // microseconds since 1970
	ID int64
}

// Before says whether p comes before q.
func (p Position) Before(q Position) bool { return p.At < q.At || p.At == q.At && p.ID < q.ID }

// Moment is the position that all rows up to a time are at or before.
func Moment(at time.Time) Position { return Position{At: at.UnixMicro(), ID: math.MaxInt64} }

func later(p, q Position) Position {
	if p.Before(q) {
		return q
	}
	return p
}

// Mark is how far somebody who claims has come. It is not safe for concurrent use, but looks may overlap. The zero
// value is the beginning.
type Mark struct {
	// Overlap is how far behind what was claimed looks start while the mark is held.
	Overlap Position

	exact Position // there is nothing up to here, but for rows that were given up while they were passed
	fast  Position // where looks start: exact, or beyond it while that is held
	drawn Position // positions up to here had been handed out when the last look ended
	xmin  int64    // the highest of a snapshot so far

	next   Position // what becomes exact once all below number have ended; the zero Position = none
	number int64
	since  time.Time

	fullAt, fullFrom time.Time // when the next full look is due, and from when on it may be made
}

// Look is one statement that claims.
type Look struct {
	From  Position // exclusive
	full  bool
	drawn Position
}

// Result is what a look found.
type Result struct {
	Xmin    int64    // of its snapshot
	Number  int64    // the next transaction's, read after the snapshot
	Drawn   Position // positions up to here had been handed out when the look ended
	Reached Position // of the last row that it claimed, if any
	Limited bool     // it claimed as many as it might, so there may be more
}

// Next says where to look. Done is called if, and when, the statement has committed.
func (m *Mark) Next(now time.Time) Look {
	held := m.exact.Before(m.fast) && m.next != Position{} && m.xmin >= m.number // by nobody any more
	if !now.Before(m.fullFrom) && (held || !now.Before(m.fullAt)) {
		return Look{full: true, drawn: m.drawn}
	}
	return Look{From: m.fast, drawn: m.drawn}
}

// Done says what a look found and how long it took.
func (m *Mark) Done(now time.Time, took time.Duration, l Look, r Result) {
	if l.full {
		m.fullAt, m.fullFrom = now.Add(FullInterval), now.Add(fullShare*took)
	}
	if r.Drawn.Before(l.drawn) { // the sequence was reset, or the clock
		*m = Mark{Overlap: m.Overlap, drawn: r.Drawn, fullAt: m.fullAt, fullFrom: m.fullFrom}
		return
	}
	if l.full && r.Limited && r.Reached.Before(m.fast) { // there may be more like these
		m.fast = r.Reached
		if r.Reached.Before(m.exact) {
			m.exact = r.Reached
		}
	}
	m.drawn, m.xmin = later(m.drawn, r.Drawn), max(m.xmin, r.Xmin)

	to := later(r.Reached, l.drawn) // how far this look has come
	if r.Limited {
		to = r.Reached
	}
	saw := m.next != Position{} && r.Xmin >= m.number && (!r.Limited || !r.Reached.Before(m.next))
	if saw && !m.exact.Before(l.From) {
		m.exact, m.next = later(m.exact, m.next), Position{}
		m.fast = later(m.fast, m.exact)
	}
	if m.next == (Position{}) && m.exact.Before(to) {
		m.next, m.number, m.since = to, r.Number, now
	}
	if m.next != (Position{}) && now.Sub(m.since) >= HoldFor && !l.full {
		m.fast = later(m.fast, Position{At: max(to.At-m.Overlap.At, 0), ID: max(to.ID-m.Overlap.ID, 0)})
	}
}
