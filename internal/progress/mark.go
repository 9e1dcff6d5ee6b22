package progress

import (
	"math"
	"time"
)

const (
	// HoldFor is how long open transactions may hold the mark.
	HoldFor = time.Second
	// FullInterval is the interval of full scans.
	FullInterval = time.Second
	// FullShare limits the time of full scans: after one, the next is delayed by this many times its extra time over other
	// scans.
	FullShare   = 20
	failedShare = 2 // after a failed scan, the delay is this many times its duration
	// WholeShare is FullShare for full scans that start at the beginning although Mark.Low is known.
	WholeShare = 100
)

// Position is a place in the order in which rows are claimed. At is 0 for ready rows.
type Position struct {
	At int64 // microseconds since 1970
	ID int64
}

// Before reports whether p comes before q.
func (p Position) Before(q Position) bool { return p.At < q.At || p.At == q.At && p.ID < q.ID }

// Moment returns the last position of rows that are due at a time.
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

// Mark is the progress of claims. It is not safe for concurrent use, but scans may overlap. The zero value is the
// beginning.
type Mark struct {
	// Overlap is how far behind the last claimed row scans start while the mark is held.
	Overlap Position
	// Low is where most full scans start: at some time all rows before it were settled or dead. The zero Position is the
	// beginning.
	Low Position

	exact Position // no row is left up to here, except rows that were locked when read and released later
	fast  Position // where scans start: exact, or beyond it while that is held
	drawn Position // positions up to here had been assigned when the last scan ended
	xmin  int64    // the highest xmin of a snapshot so far

	next   Position // the next value of exact, once all transactions below number have ended; the zero Position = none
	number int64
	since  time.Time

	paged pagedScan // a scan that continues at the end of its last page
	tail  bool      // the next scan starts at the mark, between two pages of a full one

	fullAt time.Time     // when the next full scan is due
	usual  time.Duration // duration of a scan that is not full
	excess time.Duration // extra time of the last full scan

	wholeAt time.Time     // when a full scan will start at the beginning
	whole   time.Duration // extra time of the last such scan
}

// pagedScan is a scan in several statements that counts as one, with the start of the first.
type pagedScan struct {
	on   bool
	at   Position // end of the last page
	of   Scan     // when the first page began
	xmin int64    // xmin of the first page
	took time.Duration
}

// Scan is one statement that claims.
type Scan struct {
	From  Position // start, exclusive
	full  bool
	whole bool // full, and from the beginning although Low is set
	page  bool // continues where another page ended
	pages bool // may pass many rows
	drawn Position
}

// Result is the result of a scan.
type Result struct {
	Xmin    int64    // xmin of its snapshot
	Number  int64    // the next transaction number, read after the snapshot
	Drawn   Position // positions up to here had been assigned when the scan ended
	Reached Position // position of the last row that it claimed, if any
	Limited bool     // it claimed up to its limit, over all kinds of rows, so more may be left
	Paged   bool     // it read up to its limit of rows, to Reached, and claimed all that it could
}

// Full reports whether the scan starts at the beginning or at Mark.Low.
func (s Scan) Full() bool { return s.full }

// Pages reports whether the scan may pass many rows, so that its statement should read at most a page of them.
func (s Scan) Pages() bool { return s.pages }

// Reaches reports, after a scan of m that found all rows, whether from now on one scan can read the rows of both m and
// other, provided that the same statement made the last scan of other: no row of m is left below the mark of other, and
// scans that start at other's exact mark see the rows that are not visible yet.
func (m *Mark) Reaches(l Scan, other *Mark) bool {
	return l.full && !l.page || !m.exact.Before(l.From) || !m.exact.Before(other.exact)
}

// Settled reports whether no row is left up to a position and none will appear there, except rows that are released.
func (m *Mark) Settled(p Position) bool { return !m.exact.Before(p) }

// Next returns the next scan. If full is true, a scan starts at the beginning from time to time. Call Done when its
// statement has committed, and Failed if it has not, or if its outcome is unknown.
func (m *Mark) Next(now time.Time, full bool) Scan {
	if w := m.paged; w.on && (!w.of.full || full && !m.tail) {
		return Scan{From: w.at, full: w.of.full, whole: w.of.whole, page: true, pages: true, drawn: w.of.drawn}
	}
	l := Scan{From: m.fast, drawn: m.drawn}
	switch ahead := m.exact.Before(m.fast); {
	case ahead && m.next != Position{} && m.xmin >= m.number: // no transaction holds it any more
		l.From, l.pages = m.exact, true
	case full && !m.paged.on && !now.Before(m.fullAt) && m.fast != Position{}:
		l.From, l.full = m.Low, true
		if m.Low != (Position{}) && !now.Before(m.wholeAt) {
			l.From, l.whole = Position{}, true
		}
	}
	l.pages = l.pages || l.full || l.From == Position{}
	return l
}

// Failed records that a scan failed after some time. A full scan is not repeated immediately, because scans from the
// mark may still work. It is repeated sooner than after a slow one, because its length need not be the cause.
func (m *Mark) Failed(now time.Time, took time.Duration, l Scan) {
	if l.full {
		m.fullAt, m.paged = now.Add(AfterFailure(took)), pagedScan{}
	}
	if l.whole {
		m.wholeAt = now.Add(WholeShare * took)
	}
}

// AfterFailure returns the time between a full scan that failed and the next one.
func AfterFailure(took time.Duration) time.Duration { return max(FullInterval, failedShare*took) }

// Done records the result of a scan and how long it took.
func (m *Mark) Done(now time.Time, took time.Duration, l Scan, r Result) {
	m.tail = l.full
	xmin := r.Xmin
	if r.Limited && r.Reached == (Position{}) { // rows of other kinds used up the limit: nothing is known about these
		m.xmin = max(m.xmin, xmin)
		if !l.page { // otherwise the page is scanned once more
			m.Failed(now, took, l)
		}
		return
	}
	if l.page {
		if !m.paged.on || l.From != m.paged.at { // another scan has moved it
			m.xmin = max(m.xmin, xmin)
			return
		}
		took, r.Xmin, l = m.paged.took+took, m.paged.xmin, m.paged.of
		m.paged = pagedScan{}
	}
	if l.full && r.Paged && !r.Reached.Before(m.fast) { // scans from the mark do the rest
		r.Paged, r.Limited = false, true
	}
	if r.Paged && !r.Drawn.Before(l.drawn) {
		m.paged = pagedScan{on: true, at: r.Reached, of: l, xmin: r.Xmin, took: took}
		m.xmin = max(m.xmin, xmin)
		return
	}
	excess := took - m.usual
	switch { // a single slow scan may be due to a stalled machine
	case l.whole:
		m.fullAt, m.wholeAt = now.Add(FullInterval), now.Add(WholeShare*min(excess, m.whole))
		m.whole = excess
	case l.full:
		m.fullAt = now.Add(max(FullInterval, FullShare*min(excess, m.excess)))
		m.excess = (3*m.excess + excess) / 4
	default:
		m.usual = (3*m.usual + took) / 4
	}
	if r.Drawn.Before(l.drawn) { // the sequence or the clock was reset
		*m = Mark{Overlap: m.Overlap, drawn: r.Drawn, fullAt: m.fullAt, usual: m.usual, excess: m.excess}
		return
	}
	m.drawn, m.xmin = later(m.drawn, r.Drawn), max(m.xmin, xmin)
	to, covered := later(r.Reached, l.drawn), last // how far the scan read, and how far it claimed everything
	if r.Limited {
		to, covered = r.Reached, r.Reached
	}
	if l.From.Before(m.fast) && covered.Before(m.fast) { // more such rows may be left
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
