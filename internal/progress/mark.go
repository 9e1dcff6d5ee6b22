package progress

import (
	"math"
	"time"
)

const (
	// HoldFor is how long the mark may be held by transactions that are open.
	HoldFor = time.Second
	// FullInterval is how often all is looked through.
	FullInterval = time.Second
	failedShare  = 2  // after one that failed they wait for this many times as long as it took
	fullShare    = 20 // full looks wait for this many times as long as they usually take longer than others
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

func earlier(p, q Position) Position {
	if q.Before(p) {
		return q
	}
	return p
}

// last is a position after all others.
var last = Position{At: math.MaxInt64, ID: math.MaxInt64}

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

	fullAt time.Time     // when the next full look is due
	usual  time.Duration // what a look takes that is not full
	excess time.Duration // what a full one takes more
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

// Full says whether the look is one from the beginning.
func (l Look) Full() bool { return l.full }

// Reaches says, after a look of m that found all that there was, whether what m is the mark of may be looked for together with what
// other is the mark of from now on, provided that the last look of that was the same statement: there is nothing left of it
// where other has been. What is not seen yet is seen by looks that begin at the exact mark of other.
func (m *Mark) Reaches(l Look, other *Mark) bool {
	return l.full || !m.exact.Before(l.From) || !m.exact.Before(other.exact)
}

// Settled says whether there is nothing up to a position, and nothing will be, but for rows that go back.
func (m *Mark) Settled(p Position) bool { return !m.exact.Before(p) }

// Next says where to look, from the beginning now and then if it may be. Done is called if, and when, the statement has
// committed, Failed if it has not, or nobody knows.
func (m *Mark) Next(now time.Time, full bool) Look {
	l := Look{From: m.fast, drawn: m.drawn}
	switch ahead := m.exact.Before(m.fast); {
	case ahead && m.next != Position{} && m.xmin >= m.number: // nobody holds it any more
		l.From = m.exact
	case full && !now.Before(m.fullAt) && m.fast != Position{}:
		l.From, l.full = Position{}, true
	}
	return l
}

// Failed says that a look failed after some time. A full one is not due again at once: looks from the mark on may be
// what works. It need not be its length that made it fail, so it is due sooner than after one that was slow.
func (m *Mark) Failed(now time.Time, took time.Duration, l Look) {
	if l.full {
		m.fullAt = now.Add(AfterFailure(took))
	}
}

// AfterFailure is how long no full look is due after one that failed.
func AfterFailure(took time.Duration) time.Duration { return max(FullInterval, failedShare*took) }

// Done says what a look found and how long it took.
func (m *Mark) Done(now time.Time, took time.Duration, l Look, r Result) {
	if l.full {
		excess := took - m.usual
		m.fullAt = now.Add(max(FullInterval, fullShare*min(excess, m.excess))) // slow once, it may have met a machine that stood still
		m.excess = (3*m.excess + excess) / 4
	} else {
		m.usual = (3*m.usual + took) / 4
	}
	if r.Drawn.Before(l.drawn) { // the sequence was reset, or the clock
		*m = Mark{Overlap: m.Overlap, drawn: r.Drawn, fullAt: m.fullAt, usual: m.usual, excess: m.excess}
		return
	}
	m.drawn, m.xmin = later(m.drawn, r.Drawn), max(m.xmin, r.Xmin)
	to, covered := later(r.Reached, l.drawn), last // how far it has come, and to where it has taken all that it saw
	if r.Limited {
		to, covered = r.Reached, r.Reached
	}
	if l.From.Before(m.fast) && covered.Before(m.fast) { // there may be more like these
		m.fast, m.exact = covered, earlier(m.exact, covered)
	}
	if m.next != (Position{}) && r.Xmin >= m.number && !m.exact.Before(l.From) {
		if m.exact = later(m.exact, earlier(m.next, covered)); !covered.Before(m.next) {
			m.next = Position{}
		}
		m.fast = later(m.fast, m.exact)
	}
	if m.next == (Position{}) && m.exact.Before(to) {
		m.next, m.number, m.since = to, r.Number, now
	}
	if m.next != (Position{}) && now.Sub(m.since) >= HoldFor && !l.full {
		m.fast = later(m.fast, Position{At: max(to.At-m.Overlap.At, 0), ID: max(to.ID-m.Overlap.ID, 0)})
	}
}
