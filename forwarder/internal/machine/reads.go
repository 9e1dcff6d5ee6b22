package machine

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
)

const (
	restAtMost    = 20 * time.Millisecond // between reads that commits ask for
	longLag       = 1000                  // ids to read again that make a look at the locks worth its cost
	raiseInterval = 500 * time.Millisecond
)

// reads is when to read, and what is under way.
type reads struct {
	begun   int64     // how many
	at      time.Time // when the reader looks
	asked   bool      // the board wants a read
	dirty   bool      // there is something new to read
	more    bool      // the last read did not reach the end
	poll    time.Time // when to read unasked
	dueAt   time.Time // when to look for delayed messages
	manyDue bool      // the last look had no room for all: the next is made on time, and not with the next read
	ofDue   Pace
	raiseAt time.Time // when to look which long transactions have not written
	nextTry time.Time // after an error
	asking  time.Time // since when a read is under way; zero = none is
	ended   time.Time
	took    time.Duration // without payloads that were read afterwards
}

// ReadPlan is what the reader is to do.
type ReadPlan struct {
	Wait    time.Duration // until the next read; 0 = read now
	Load    []lanes.Term  // load the blocked keys of these now, even if there is nothing to read
	Writers bool          // look first which long transactions have written
}

// ReadRequest is what a read asks for.
type ReadRequest struct {
	Number int64
	Asks   board.Asks
	Window window.Request
	Due    bool // also what fell due
	Begun  time.Time
}

// ReadAnswer is the complete result of a read.
type ReadAnswer struct {
	window.Answer
	Read  board.Read
	added int // by PartRead
}

// PlanRead looks whether to read, and notes when the reader will look again. dirty says that there is something new to
// read.
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

// nextRead says when to read, but for what must be waited for after an error.
func (m *Machine) nextRead(now time.Time) time.Time {
	if !m.isReading() {
		return now.Add(time.Hour) // lanes that are taken wake the reader
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

// readsSooner says whether what falls due has the reader look before the time that it has noted. In a pause after an
// error it does not: the reader would be woken by each of its own looks until the pause is over.
func (m *Machine) readsSooner(due time.Time) bool {
	return !due.IsZero() && due.Before(m.reads.at) && m.reads.nextTry.Before(m.reads.at) && m.isReading()
}

// isReading says whether there is a lane to read.
func (m *Machine) isReading() bool {
	for _, l := range m.lanes {
		if l.Epoch != 0 && l.State == Reading {
			return true
		}
	}
	return false
}

// LaneLoaded starts a lane whose heads were loaded in a life of the server, unless it was lost meanwhile.
func (m *Machine) LaneLoaded(now time.Time, t lanes.Term, life string, lane board.Taken) {
	if m.lanes[t.Lane] != (Lane{Epoch: t.Epoch, State: Taken}) {
		return
	}
	m.lanes[t.Lane].State = Reading
	m.board.LaneTaken(now, lane)
	m.window.Take(t.Lane, t.Epoch, life)
}

// WritersSeen takes which transactions may have written to the outbox, found out after the last complete read and
// before the next request.
func (m *Machine) WritersSeen(writers map[uint32]bool) { m.window.Raise(writers) }

// ReadBegins says what to read, if there is anything to read from. ranges says that it may be a single range of ids.
// The next event of the reader is ReadAnswered or ReadFailed.
func (m *Machine) ReadBegins(now time.Time, ranges bool) (r ReadRequest, ok bool) {
	if !m.isReading() {
		return r, false
	}
	m.reads.dirty, m.reads.asked, m.reads.asking = false, false, now
	m.reads.begun++
	r.Number, r.Begun = m.reads.begun, now
	r.Asks = m.board.ReadBegins(now)
	if r.Due = !now.Before(m.reads.dueAt) || len(m.drains) > 0 || r.Asks.WantDue; r.Due {
		for _, n := range r.Asks.Due {
			r.Asks.Room.Others += int(n)
		}
	}
	r.Window = m.window.Next(r.Asks.Room, ranges, m.known)
	r.catch()
	return r, true
}

// catch says how far what was deferred is caught up in each lane: up to its mark, unless that is a long way.
func (r *ReadRequest) catch() {
	c, w := &r.Asks.Catch, &r.Window
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

// Wanted looks which rows of an answer need what was left out of them.
func (m *Machine) Wanted(r *ReadRequest, a *ReadAnswer) []*board.Row {
	return m.board.Wanted(r.Asks, &a.Read)
}

// ReadAnswered takes a complete answer: it moves the marks, and PartRead and ReadEnds take the rows. In a new life of
// the server it forgets all lanes and takes the request back, because ids may mean other messages now. What is being
// published is so under its old ids, and settled only where they mean the same message.
func (m *Machine) ReadAnswered(now time.Time, r *ReadRequest, a *ReadAnswer) (newLife bool) {
	m.readOver(now, a.Took)
	p := m.window.Complete(r.Window, a.Answer)
	if p.Life == window.Changed {
		m.window.Reset()
		m.lose(m.All())
		m.effects.Wake |= WakeKeeper // which takes the lanes anew
		m.board.ReadFailed(now, r.Asks)
		return true
	}
	m.reads.more = p.More
	return false
}

func (m *Machine) readOver(now time.Time, took time.Duration) {
	m.reads.ended, m.reads.took, m.reads.poll = now, took, now.Add(m.cfg.PollInterval)
}

// HasPart says whether an answer is so large that its first rows are taken over by PartRead.
func (a *ReadAnswer) HasPart(r *ReadRequest, rows int) bool {
	return len(r.Asks.IDs) == 0 && r.Asks.Catch.None() && len(a.Read.Ready) > rows
}

// PartRead takes over the first rows of an answer that has them. Workers wait for each event.
func (m *Machine) PartRead(now time.Time, a *ReadAnswer, rows int) {
	a.added += m.board.PartRead(now, a.Read.Ready[:rows])
	a.Read.Ready = a.Read.Ready[rows:]
}

// ReadEnd is what a read came to.
type ReadEnd struct {
	Added int  // rows that were new
	More  bool // there may be more to read
}

// ReadEnds takes over the rest of an answer.
func (m *Machine) ReadEnds(now time.Time, r *ReadRequest, a *ReadAnswer) ReadEnd {
	m.addTerms(r, a)
	b := m.board.RowsRead(now, r.Asks, a.Read)
	added := a.added + b.Added
	m.reads.more = m.reads.more || b.More
	if r.Due {
		// Looking for what fell due walks what is delayed; it may use about a twentieth of the time.
		m.reads.dueAt = r.Begun.Add(max(m.cfg.PollInterval, m.reads.ofDue.Rest(a.Took)))
		if m.reads.manyDue = b.ManyDue; b.ManyDue { // all that it found is new, or nearly
			m.reads.dueAt = r.Begun.Add(2 * a.Took)
		}
	}
	m.failing, m.reads.asking = time.Time{}, time.Time{}
	m.findQuiet(now, r, b, added)
	return ReadEnd{Added: added, More: m.reads.more}
}

// addTerms tells the board of each lane that was asked for whether it is still ours, and how far it was read.
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

// findQuiet finds out whether a read has found nothing left to do, and answers drains.
func (m *Machine) findQuiet(now time.Time, r *ReadRequest, p board.Progress, added int) {
	quiet, paused := m.board.QuietButPaused()
	quiet = quiet && added == 0 && !m.reads.more && m.complete()
	if quiet && r.Due && (p.Hidden || m.reopened(r.Asks.Closed)) { // another read sees what of it fell due
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

// reopened says whether any of the topics that a read left out is open by now.
func (m *Machine) reopened(leftOut []string) bool {
	if len(leftOut) == 0 {
		return false
	}
	closed := m.board.Closed()
	return slices.ContainsFunc(leftOut, func(t string) bool { return !slices.Contains(closed, t) })
}

// ReadFailed takes a request back, nil = none was made or it is over, and does not read for a pause.
func (m *Machine) ReadFailed(now time.Time, r *ReadRequest, timedOut bool, pause time.Duration) {
	if r != nil {
		m.readOver(now, now.Sub(r.Begun))
		m.reads.more = true
		m.window.Failed(r.Window, timedOut)
		m.board.ReadFailed(now, r.Asks)
	}
	m.reads.nextTry = now.Add(pause)
	if m.quiet, m.reads.asking = (time.Time{}), (time.Time{}); m.failing.IsZero() {
		m.failing = now
	}
}
