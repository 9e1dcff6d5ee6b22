package machine

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
)

const (
	restAtMost    = 20 * time.Millisecond // between reads that commits trigger
	longLag       = 1000                  // ids to read again that make inspecting the locks worth its cost
	raiseInterval = 500 * time.Millisecond
)

// reads is when to read, and the read in flight.
type reads struct {
	begun   int64     // number of reads begun
	at      time.Time // when the reader wakes
	asked   bool      // the board wants a read
	dirty   bool      // there is something new to read
	more    bool      // the last read did not reach the end
	poll    time.Time // when to read without other reason
	dueAt   time.Time // when to look for delayed messages
	manyDue bool      // the last search for due rows lacked room: the next is on schedule, not with the next read
	ofDue   Pace
	raiseAt time.Time // when to check which long transactions have not written
	nextTry time.Time // after an error
	asking  time.Time // since when a read has been in flight; zero = none is
	ended   time.Time
	took    time.Duration // without payloads that were read afterwards
}

// ReadPlan is what the reader should do.
type ReadPlan struct {
	Wait    time.Duration // until the next read; 0 = read now
	Load    []lanes.Term  // load the blocked keys of these now, even if there is nothing to read
	Writers bool          // first check which long transactions have written
}

// ReadRequest is the request of a read.
type ReadRequest struct {
	Number int64
	Board  board.Request
	Window window.Request
	Due    bool // also due rows
	Begun  time.Time
}

// ReadAnswer is the complete result of a read.
type ReadAnswer struct {
	window.Answer
	Read  board.Read
	added int // by PartRead
}

// PlanRead returns whether to read, and records when the reader will wake again. dirty means that there is something
// new to read.
func (m *Machine) PlanRead(now time.Time, dirty bool) (p ReadPlan) {
	m.reads.dirty = m.reads.dirty || dirty
	at := m.nextRead(now)
	for n, l := range m.lanes {
		if l.Epoch != 0 && l.State == Taken {
			p.Load = append(p.Load, lanes.Term{Lane: int16(n), Epoch: l.Epoch})
		}
	}
	if at.Before(m.reads.nextTry) {
		at = m.reads.nextTry
	}
	if len(p.Load) > 0 && now.Before(m.reads.nextTry) {
		p.Load, at = nil, m.reads.nextTry
	}
	m.reads.at = at
	p.Wait = max(0, at.Sub(now))
	if (p.Wait == 0 || len(p.Load) > 0) && !now.Before(m.reads.raiseAt) && m.window.Lag() >= longLag {
		m.reads.raiseAt = now.Add(raiseInterval)
		p.Writers = true
	}
	return p
}

// nextRead returns when to read, ignoring the pause after an error.
func (m *Machine) nextRead(now time.Time) time.Time {
	if !m.isReading() {
		return now.Add(time.Hour) // newly taken lanes wake the reader
	}
	next := m.reads.poll
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if m.reads.asked {
		sooner(now)
	}
	if _, due := m.board.Due(); !due.IsZero() {
		sooner(due)
	}
	if m.reads.manyDue {
		sooner(m.reads.dueAt)
	}
	for _, d := range m.drains {
		if d.until.After(m.reads.ended) {
			sooner(d.until)
		}
	}
	if m.board.HasRoom() {
		if m.reads.more {
			sooner(now)
		}
		if m.reads.dirty {
			// A read per commit would cost more than it finds: rest as long as the last one took.
			sooner(m.reads.ended.Add(min(m.reads.took, restAtMost)))
		}
	}
	return next
}

// readsSooner reports whether a message that falls due must wake the reader before its recorded time. In a pause after
// an error it must not: each of the reader's own checks would wake it again until the pause is over.
func (m *Machine) readsSooner(due time.Time) bool {
	return !due.IsZero() && due.Before(m.reads.at) && m.reads.nextTry.Before(m.reads.at) && m.isReading()
}

// isReading reports whether there is a lane to read.
func (m *Machine) isReading() bool {
	for _, l := range m.lanes {
		if l.Epoch != 0 && l.State == Reading {
			return true
		}
	}
	return false
}

// LaneLoaded starts a lane whose heads were loaded in an incarnation of the server, unless it was lost in the meantime.
func (m *Machine) LaneLoaded(now time.Time, t lanes.Term, life string, lane board.Taken) {
	if m.lanes[t.Lane] != (Lane{Epoch: t.Epoch, State: Taken}) {
		return
	}
	m.lanes[t.Lane].State = Reading
	m.board.LaneTaken(now, lane)
	m.window.Take(t.Lane, t.Epoch, life)
}

// WritersSeen applies which transactions may have written to the outbox, determined after the last complete read and
// before the next request.
func (m *Machine) WritersSeen(writers map[uint32]bool) { m.window.Raise(writers) }

// ReadBegins returns what to read, if there is a lane to read. ranges means that it may be a single range of ids. The
// next event of the reader is ReadAnswered or ReadFailed.
func (m *Machine) ReadBegins(now time.Time, ranges bool) (r ReadRequest, ok bool) {
	if !m.isReading() {
		return r, false
	}
	m.reads.dirty, m.reads.asked, m.reads.asking = false, false, now
	m.reads.begun++
	r.Number, r.Begun = m.reads.begun, now
	r.Board = m.board.ReadBegins(now)
	if r.Due = !now.Before(m.reads.dueAt) || len(m.drains) > 0 || r.Board.WantDue; r.Due {
		for _, n := range r.Board.Due {
			r.Board.Room.Others += int(n)
		}
	}
	r.Window = m.window.Next(r.Board.Room, ranges, m.known)
	r.catch()
	return r, true
}

// catch sets how far deferred rows are caught up in each lane: up to its cursor, unless that is far away.
func (r *ReadRequest) catch() {
	c, w := &r.Board.Catch, &r.Window
	for n, limit := range c.Limits {
		switch {
		case limit == 0 || w.Epochs[n] == 0:
			c.Limits[n] = 0
		case c.From[n]+w.Again < w.Marks[n]:
			c.Upto[n] = c.From[n] + w.Again
			c.Short |= 1 << n
		default:
			c.Upto[n] = w.Marks[n]
		}
	}
}

func (m *Machine) known(lane int16, mark int64) (above, all int) {
	return m.board.Known(lanes.Term{Lane: lane, Epoch: m.lanes[lane].Epoch}, mark)
}

// Wanted returns the rows of an answer that need the payloads left out of them.
func (m *Machine) Wanted(r *ReadRequest, a *ReadAnswer) []*board.Row {
	return m.board.Wanted(r.Board, &a.Read)
}

// ReadAnswered applies a complete answer: it moves the cursors, and PartRead and ReadEnds apply the rows. In a new
// incarnation of the server it forgets all lanes and takes the request back, because ids may now mean other messages.
// Messages that are being published keep their old ids, and are settled only if those still mean the same message.
func (m *Machine) ReadAnswered(now time.Time, r *ReadRequest, a *ReadAnswer) (newLife bool) {
	m.readOver(now, a.Took)
	p := m.window.Complete(r.Window, a.Answer)
	if p.Life == window.Changed {
		m.window.Reset()
		m.lose(m.All())
		m.effects.Wake |= WakeKeeper // the keeper takes the lanes again
		m.board.ReadFailed(now, r.Board)
		return true
	}
	m.reads.more = p.More
	return false
}

func (m *Machine) readOver(now time.Time, took time.Duration) {
	m.reads.ended, m.reads.took, m.reads.poll = now, took, now.Add(m.cfg.PollInterval)
}

// HasPart reports whether an answer is so large that its first rows should be applied by PartRead.
func (a *ReadAnswer) HasPart(r *ReadRequest, rows int) bool {
	return len(r.Board.IDs) == 0 && r.Board.Catch.None() && len(a.Read.Ready) > rows
}

// PartRead applies the first rows of a large answer. Workers wait for each event.
func (m *Machine) PartRead(now time.Time, a *ReadAnswer, rows int) {
	a.added += m.board.PartRead(now, a.Read.Ready[:rows])
	a.Read.Ready = a.Read.Ready[rows:]
}

// ReadEnd is the result of a read.
type ReadEnd struct {
	Added int  // new rows
	More  bool // there may be more to read
}

// ReadEnds applies the rest of an answer.
func (m *Machine) ReadEnds(now time.Time, r *ReadRequest, a *ReadAnswer) ReadEnd {
	m.addTerms(r, a)
	b := m.board.RowsRead(now, r.Board, a.Read)
	added := a.added + b.Added
	m.reads.more = m.reads.more || b.More
	if r.Due {
		// Looking for due rows scans the delayed ones; it may use about a twentieth of the time.
		m.reads.dueAt = r.Begun.Add(max(m.cfg.PollInterval, m.reads.ofDue.Rest(a.Took)))
		if m.reads.manyDue = b.ManyDue; b.ManyDue { // all that it found is new, or nearly
			m.reads.dueAt = r.Begun.Add(2 * a.Took)
		}
	}
	m.failing, m.reads.asking = time.Time{}, time.Time{}
	m.findQuiet(now, r, b, added)
	return ReadEnd{Added: added, More: m.reads.more}
}

// addTerms tells the board, for each lane that was asked for, whether it is still ours and how far it was read.
func (m *Machine) addTerms(r *ReadRequest, a *ReadAnswer) {
	for n, epoch := range r.Window.Epochs {
		t := lanes.Term{Lane: int16(n), Epoch: epoch}
		switch mark, now := m.window.Mark(t.Lane); {
		case epoch == 0:
		case !a.Owned[n]:
			m.lose([]lanes.Term{t})
		case now != epoch: // it is being handed back
			a.Read.Terms = append(a.Read.Terms, board.TermRead{Term: t})
		default:
			a.Read.Terms = append(a.Read.Terms, board.TermRead{Term: t, Mark: mark})
		}
	}
}

// findQuiet ends drains once a read has found no work left.
func (m *Machine) findQuiet(now time.Time, r *ReadRequest, p board.Progress, added int) {
	quiet, paused := m.board.QuietButPaused()
	quiet = quiet && added == 0 && !m.reads.more && m.complete()
	leftOut := slices.Concat(r.Board.Closed, r.Board.Guessed)
	if quiet && r.Due && (p.Hidden || m.reopened(leftOut)) { // another read sees the due rows
		quiet, m.reads.asked, m.reads.dueAt = false, true, now
	}
	switch {
	case !quiet || len(paused) > 0:
		m.quiet = time.Time{}
	case m.quiet.IsZero():
		m.quiet = now
	}
	if quiet {
		m.endDrains(now, r.Number, Drained{Paused: paused})
	}
}

// reopened reports whether any of the topics that a read left out is now open.
func (m *Machine) reopened(leftOut []string) bool {
	if len(leftOut) == 0 {
		return false
	}
	closed := m.board.Closed()
	return slices.ContainsFunc(leftOut, func(t string) bool { return !slices.Contains(closed, t) })
}

// ReadFailed takes back a request (nil = none was made, or it is over), and pauses reading.
func (m *Machine) ReadFailed(now time.Time, r *ReadRequest, timedOut bool, pause time.Duration) {
	if r != nil {
		m.readOver(now, now.Sub(r.Begun))
		m.reads.more = true
		m.window.Failed(r.Window, timedOut)
		m.board.ReadFailed(now, r.Board)
	}
	m.reads.nextTry = now.Add(pause)
	if m.quiet, m.reads.asking = (time.Time{}), (time.Time{}); m.failing.IsZero() {
		m.failing = now
	}
}
