package coordinator

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

const (
	restAtMost      = 20 * time.Millisecond // between reads that commits trigger
	longLag         = 1000                  // ids to read again that make inspecting the locks worth its cost
	writersInterval = 500 * time.Millisecond
)

// reads is when to read, and the read in flight.
type reads struct {
	at            time.Time // when the reader wakes
	wanted        bool      // the dispatcher wants a read
	dirty         bool      // there is something new to read
	more          bool      // the last read did not reach the end
	poll          time.Time // when to read without other reason
	dueAt         time.Time // when to look for delayed messages
	manyDue       bool      // the last search for due rows lacked room: the next is at dueAt, or once there is room
	dueThrottle   Throttle
	writersAt     time.Time // when to check which long transactions have not written
	nextTry       time.Time // after an error
	inFlightSince time.Time // since when a read has been in flight; zero = none is
	ended         time.Time
	took          time.Duration // without payloads that were read afterwards
}

// ReadPlan is what the reader should do.
type ReadPlan struct {
	Wait    time.Duration      // until the next read; 0 = read now
	Load    []lanes.Assignment // load the blocked keys of these now, even if there is nothing to read
	Writers bool               // first check which long transactions have written
}

// ReadRequest is the request of a read.
type ReadRequest struct {
	Dispatch dispatch.Request
	Cursors  cursor.Request
	Due      bool // also due rows
	Begun    time.Time
}

// ReadAnswer is the complete result of a read.
type ReadAnswer struct {
	cursor.Answer
	Read  dispatch.Read
	added int // by PartRead
}

// PlanRead returns whether to read, and records when the reader will wake again. dirty means that there is something
// new to read.
func (c *Coordinator) PlanRead(now time.Time, dirty bool) (p ReadPlan) {
	c.reads.dirty = c.reads.dirty || dirty
	at := c.nextRead(now)
	for n, l := range c.lanes {
		if l.Epoch != 0 && l.State == Taken {
			p.Load = append(p.Load, lanes.Assignment{Lane: int16(n), Epoch: l.Epoch})
		}
	}
	if at.Before(c.reads.nextTry) {
		at = c.reads.nextTry
	}
	if len(p.Load) > 0 && now.Before(c.reads.nextTry) {
		p.Load, at = nil, c.reads.nextTry
	}
	c.reads.at = at
	p.Wait = max(0, at.Sub(now))
	if (p.Wait == 0 || len(p.Load) > 0) && !now.Before(c.reads.writersAt) && c.cursors.Lag() >= longLag {
		c.reads.writersAt = now.Add(writersInterval)
		p.Writers = true
	}
	return p
}

// nextRead returns when to read, ignoring the pause after an error.
func (c *Coordinator) nextRead(now time.Time) time.Time {
	if !c.isReading() {
		return now.Add(time.Hour) // newly taken lanes wake the reader
	}
	next := c.reads.poll
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if c.reads.wanted {
		sooner(now)
	}
	if _, due := c.dispatcher.NextTimes(); !due.IsZero() {
		sooner(due)
	}
	for _, d := range c.drains {
		if d.until.After(c.reads.ended) {
			sooner(d.until)
		}
	}
	if c.dispatcher.HasRoom() {
		if c.reads.manyDue {
			sooner(c.reads.dueAt)
		}
		if c.reads.more {
			sooner(now)
		}
		if c.reads.dirty {
			// A read per commit would cost more than it finds: rest as long as the last one took.
			sooner(c.reads.ended.Add(min(c.reads.took, restAtMost)))
		}
	}
	return next
}

// readsSooner reports whether a message that falls due must wake the reader before its recorded time. In a pause after
// an error it must not: each of the reader's own checks would wake it again until the pause is over.
func (c *Coordinator) readsSooner(due time.Time) bool {
	return !due.IsZero() && due.Before(c.reads.at) && c.reads.nextTry.Before(c.reads.at) && c.isReading()
}

// isReading reports whether there is a lane to read.
func (c *Coordinator) isReading() bool {
	for _, l := range c.lanes {
		if l.Epoch != 0 && l.State == Reading {
			return true
		}
	}
	return false
}

// LaneLoaded starts a lane whose blocked rows were loaded in an incarnation of the server, unless it was lost in the
// meantime.
func (c *Coordinator) LaneLoaded(now time.Time, t lanes.Assignment, incarnation string, lane dispatch.TakenLane) {
	if c.lanes[t.Lane] != (Lane{Epoch: t.Epoch, State: Taken}) {
		return
	}
	c.lanes[t.Lane].State = Reading
	c.dispatcher.LaneTaken(now, lane)
	c.cursors.Take(t.Lane, t.Epoch, incarnation)
}

// WritersSeen applies which transactions may have written to the outbox, determined after the last complete read and
// before the next request.
func (c *Coordinator) WritersSeen(writers map[uint32]bool) { c.cursors.WritersSeen(writers) }

// ReadBegins returns what to read, if there is a lane to read. ranges means that it may be a single range of ids. The
// next event of the reader is ReadAnswered or ReadFailed.
func (c *Coordinator) ReadBegins(now time.Time, ranges bool) (r ReadRequest, ok bool) {
	if !c.isReading() {
		return r, false
	}
	c.reads.dirty, c.reads.wanted, c.reads.inFlightSince = false, false, now
	r.Begun = now
	r.Dispatch = c.dispatcher.ReadBegins(now)
	room := 0 // for due rows: without any the read would find none
	for _, n := range r.Dispatch.Due {
		room += int(n)
	}
	if room > 0 && (!now.Before(c.reads.dueAt) || len(c.drains) > 0 || r.Dispatch.WantDue) {
		r.Due = true
		r.Dispatch.Room.Others += room
	}
	r.Cursors = c.cursors.Next(r.Dispatch.Room, ranges, c.known)
	r.setCatchUp()
	return r, true
}

// setCatchUp sets how far deferred rows are caught up in each lane: up to its cursor, unless that is far away.
func (r *ReadRequest) setCatchUp() {
	c, w := &r.Dispatch.CatchUp, &r.Cursors
	for n, limit := range c.Limits {
		switch {
		case limit == 0 || w.Epochs[n] == 0:
			c.Limits[n] = 0
		case c.From[n]+w.Again < w.Cursors[n]:
			c.Upto[n] = c.From[n] + w.Again
			c.Short |= 1 << n
		default:
			c.Upto[n] = w.Cursors[n]
		}
	}
}

func (c *Coordinator) known(lane int16, cursor int64) (above, all int) {
	return c.dispatcher.KnownRows(lanes.Assignment{Lane: lane, Epoch: c.lanes[lane].Epoch}, cursor)
}

// WantedPayloads returns the rows of an answer that need the payloads left out of them.
func (c *Coordinator) WantedPayloads(r *ReadRequest, a *ReadAnswer) []*dispatch.Row {
	return c.dispatcher.WantedPayloads(r.Dispatch, &a.Read)
}

// ReadAnswered applies a complete answer: it moves the cursors, and PartRead and ReadEnds apply the rows. In a new
// incarnation of the server it forgets all lanes and takes the request back, because ids may now mean other messages.
// Messages that are being published keep their old ids, and are settled only if those still mean the same message.
func (c *Coordinator) ReadAnswered(now time.Time, r *ReadRequest, a *ReadAnswer) (newIncarnation bool) {
	c.readEnded(now, a.Took)
	p := c.cursors.Complete(r.Cursors, a.Answer)
	if p.Changed {
		c.cursors.Reset()
		c.lose(c.Assignments())
		c.effects.Wake |= WakeRebalancer // the rebalancer takes the lanes again
		c.dispatcher.ReadFailed(now, r.Dispatch)
		return true
	}
	c.reads.more = p.More
	return false
}

func (c *Coordinator) readEnded(now time.Time, took time.Duration) {
	c.reads.ended, c.reads.took, c.reads.poll = now, took, now.Add(c.cfg.PollInterval)
}

// HasPart reports whether an answer is so large that its first rows should be applied by PartRead.
func (a *ReadAnswer) HasPart(r *ReadRequest, rows int) bool {
	return len(r.Dispatch.IDs) == 0 && r.Dispatch.CatchUp.None() && len(a.Read.Ready) > rows
}

// PartRead applies the first rows of a large answer. Workers wait for each event.
func (c *Coordinator) PartRead(now time.Time, a *ReadAnswer, rows int) {
	a.added += c.dispatcher.PartRead(now, a.Read.Ready[:rows])
	a.Read.Ready = a.Read.Ready[rows:]
}

// ReadEnd is the result of a read.
type ReadEnd struct {
	Added int  // new rows
	More  bool // there may be more to read
}

// ReadEnds applies the rest of an answer.
func (c *Coordinator) ReadEnds(now time.Time, r *ReadRequest, a *ReadAnswer) ReadEnd {
	c.addLanes(r, a)
	b := c.dispatcher.RowsRead(now, r.Dispatch, a.Read)
	added := a.added + b.Added
	c.reads.more = c.reads.more || b.More
	if r.Due {
		// Looking for due rows scans the delayed ones; it may use about a twentieth of the time.
		c.reads.dueAt = r.Begun.Add(max(c.cfg.PollInterval, c.reads.dueThrottle.Rest(a.Took)))
		if c.reads.manyDue = b.ManyDue; b.ManyDue { // all that it found is new, or nearly
			c.reads.dueAt = r.Begun.Add(2 * a.Took)
		}
	}
	c.failing, c.reads.inFlightSince = time.Time{}, time.Time{}
	c.endDrainsIfQuiet(now, r, b, added)
	return ReadEnd{Added: added, More: c.reads.more}
}

// addLanes passes to the dispatcher, for each lane that was asked for, whether it is still ours and how far it was
// read.
func (c *Coordinator) addLanes(r *ReadRequest, a *ReadAnswer) {
	for n, epoch := range r.Cursors.Epochs {
		t := lanes.Assignment{Lane: int16(n), Epoch: epoch}
		switch cursor, now := c.cursors.At(t.Lane); {
		case epoch == 0:
		case !a.Owned[n]:
			c.lose([]lanes.Assignment{t})
		case now != epoch: // it is being released
			a.Read.Lanes = append(a.Read.Lanes, dispatch.LaneRead{Assignment: t})
		default:
			a.Read.Lanes = append(a.Read.Lanes, dispatch.LaneRead{Assignment: t, Cursor: cursor})
		}
	}
}

// endDrainsIfQuiet ends drains once a read has found no work left.
func (c *Coordinator) endDrainsIfQuiet(now time.Time, r *ReadRequest, p dispatch.Progress, added int) {
	quiet, paused := c.dispatcher.QuietButPaused()
	quiet = quiet && added == 0 && !c.reads.more && c.readsShare()
	if quiet && r.Due && (p.Hidden || c.reopened(r.Dispatch.Closed)) { // another read sees the due rows
		quiet, c.reads.wanted, c.reads.dueAt = false, true, now
	}
	switch {
	case !quiet || len(paused) > 0:
		c.quiet = time.Time{}
	case c.quiet.IsZero():
		c.quiet = now
	}
	if quiet {
		c.endDrains(now, Drained{Paused: paused})
	}
}

// reopened reports whether any of the topics that a read left out is now open.
func (c *Coordinator) reopened(leftOut []string) bool {
	return slices.ContainsFunc(leftOut, func(t string) bool { return !c.dispatcher.IsClosed(t) })
}

// ReadFailed takes back a request (nil = none was made, or it is over), and pauses reading.
func (c *Coordinator) ReadFailed(now time.Time, r *ReadRequest, timedOut bool, pause time.Duration) {
	if r != nil {
		c.readEnded(now, now.Sub(r.Begun))
		c.reads.more = true
		c.cursors.Failed(timedOut)
		c.dispatcher.ReadFailed(now, r.Dispatch)
	}
	c.reads.nextTry = now.Add(pause)
	if c.quiet, c.reads.inFlightSince = (time.Time{}), (time.Time{}); c.failing.IsZero() {
		c.failing = now
	}
}
