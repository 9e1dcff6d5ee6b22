package dispatch

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Room is how much more a read may bring into memory.
type Room = lanes.Room

// Request is what the dispatcher requests from a read.
type Request struct {
	IDs     []int64      // rows to read by id, pending or dead
	CatchUp CatchUp      // deferred rows that may continue
	Due     [Lanes]int64 // maximum number of due rows of a lane, if this read looks for them
	WantDue bool         // it is to look for them
	// Due rows that block their keys, and due rows of other topics than Closed and of other keys than Blocked, which have
	// many: rows that are not kept would hide others.
	Closed, Blocked []string
	Room            Room

	wantDue     dueRows
	assignments []Assignment
	fetches     []fetch
	blocked     []*key   // keys whose names are in Blocked
	reopening   []*topic // topics that were closed and whose requeued rows it looks for
}

// Read is the complete result of a read.
type Read struct {
	Lanes []LaneRead // assignments that were read and are still ours; the dispatcher's other assignments are over
	// ByID has the rows of Request.IDs that are pending, or dead if the dead block their keys; others are gone. It also
	// has the dead rows of the keys of Request.CatchUp.
	ByID    map[int64]Found
	Caught  []*Row // rows of Request.CatchUp, in order of id for each lane
	Ready   []*Row // in order of id for each lane
	Due     []*Row // due rows, if DueRead
	DueRead bool
	Late    map[int64]bool // rows of Request.IDs whose payload did not come
	DueLate bool           // the payload of a row of Due did not come

	CaughtCut [Lanes]int64 // the lowest id of Caught whose payload did not come; 0 = all came
	sawClosed bool         // of closed topics as well
	counted   bool
	caught    [Lanes]struct{ rows, last int64 }
	fellDue   [Lanes]int64
}

// LaneRead is an assignment that was read, and the cursor of its lane after this read.
type LaneRead struct {
	Assignment Assignment
	Cursor     int64
}

// Found is a row that was read by its id.
type Found struct {
	Row  *Row
	Dead bool
}

// Progress is the result of a read.
type Progress struct {
	Added   int  // new rows in memory
	More    bool // there is something to ask for immediately
	ManyDue bool // a lane returned as many due rows as it may
	Hidden  bool // the next read may return more of them
}

// ReadBegins forgets settled rows, and returns what to read. One read at a time; RowsRead or ReadFailed ends it.
func (d *Dispatcher) ReadBegins(now time.Time) (a Request) {
	d.now = now
	d.forgetSettled()
	d.forgetDegraded()
	d.resetDeferredRows()
	if d.stopped {
		return a
	}
	for _, l := range d.lanes {
		if l != nil && !l.releasing {
			a.assignments = append(a.assignments, l.assignment)
		}
	}
	if len(a.assignments) == 0 {
		return a
	}
	d.turn = (d.turn + 1) % Lanes
	// A little room is always available: the rows in memory may all wait behind a few hung calls.
	some := d.hasSomeRoom()
	if some {
		d.requestRetries(&a) // first: a message that is due anyway serves as its topic's probe
	}
	d.requestProbes(&a, some)
	if some {
		caught := d.requestCatchUp(&a, max(d.cfg.Rows/8+1, d.cfg.Rows-d.rows-len(a.IDs)))
		a.Room.Rows = max(d.cfg.Rows-d.rows-len(a.IDs)-caught, len(a.assignments))
		a.Room.Others = caught
		a.Room.Bytes = max(d.cfg.Bytes-d.bytes, 1)
		d.requestOrphans(&a)
		d.limitDue(&a)
		a.wantDue, d.wantDue = d.wantDue, noDue
		a.WantDue = a.wantDue != noDue
		d.leaveOutDelayed(&a)
	}
	a.Room.Others += len(a.IDs)
	for _, t := range d.degraded {
		switch seeks := some && t.dueUnseen != 0 && (t.probeInRead || !t.closed); {
		case seeks: // before its probe, or the rest of it, goes
			a.WantDue = true
			a.reopening = append(a.reopening, t)
		case t.closed && a.wantDue != dueOfAll:
			a.Closed = append(a.Closed, t.name)
		}
	}
	return a
}

// hasSomeRoom reports whether anything but probes may be read. Slow topics may have one row each.
func (d *Dispatcher) hasSomeRoom() bool {
	return d.rows < 2*d.cfg.Rows+callsFactor && d.bytes < 2*d.cfg.Bytes
}

// HasRoom reports whether it is worth reading more: at least half of the room is free, and settling keeps up.
func (d *Dispatcher) HasRoom() bool {
	return d.rows <= d.cfg.Rows/2 && d.bytes <= d.cfg.Bytes/2 && d.unsettled <= 2*d.cfg.Rows
}

// limitDue shares the room for due rows among the lanes: half equally, half for those that have more. Rows that the
// last read returned but that were not brought into memory come again.
func (d *Dispatcher) limitDue(a *Request) {
	many := 0
	for _, t := range a.assignments {
		if d.lanes[t.Lane].manyDue {
			many++
		}
	}
	for _, t := range a.assignments {
		l := d.lanes[t.Lane]
		n := a.Room.Rows / 2 / len(a.assignments)
		if l.manyDue {
			n += a.Room.Rows / 2 / many
		}
		a.Due[t.Lane] = int64(max(n, 1) + min(l.dueAgain, d.maxRepeated()))
	}
}

const (
	maxDelayedKeys = 64 // blocked keys whose delayed rows a read leaves out
	manyDelayed    = 64 // rows of a key from which on they are left out
)

func (d *Dispatcher) addDelayed(k *key) {
	if len(d.delayed) < maxDelayedKeys && !slices.Contains(d.delayed, k) {
		d.delayed = append(d.delayed, k)
	}
}

// leaveOutDelayed leaves out delayed rows of keys that are blocked and have many: they would come again and again, and
// hide other keys.
func (d *Dispatcher) leaveOutDelayed(a *Request) {
	d.delayed = slices.DeleteFunc(d.delayed, func(k *key) bool {
		return len(k.blockedIDs) == 0 || d.activeLane(k.lane.assignment) != k.lane
	})
	a.blocked = slices.Clone(d.delayed)
	for _, k := range a.blocked {
		a.Blocked = append(a.Blocked, k.name)
	}
}

// maxRepeated returns how many due rows of a lane may come again and again.
func (d *Dispatcher) maxRepeated() int { return max(16, d.cfg.Deferred/Lanes) }

// forgetSettled drops settled rows from what is known. It must happen before a read begins, never during one: a read
// whose snapshot is older than the settling still returns the row, and would take it for a new one.
func (d *Dispatcher) forgetSettled() {
	for _, r := range d.settled {
		if l := d.activeLane(r.Assignment); l != nil && r.call.results == 0 && l.known[r.ID] == r {
			delete(l.known, r.ID)
		}
	}
	clear(d.settled)
	d.settled = d.settled[:0]
}

// RowsRead applies a complete read. Rows that had waited come before rows that were read for the first time, and
// orphans come last: by then, rows that were read in the ordinary way are known.
func (d *Dispatcher) RowsRead(now time.Time, a Request, r Read) (p Progress) {
	d.now = now
	var ours [Lanes]LaneRead
	for _, t := range r.Lanes {
		ours[t.Assignment.Lane] = t
	}
	for _, t := range a.assignments {
		if ours[t.Lane].Assignment != t && d.activeLane(t) != nil {
			d.LanesLost(t)
		}
	}
	r.sawClosed = r.DueRead && len(a.Closed) == 0
	before := d.rows
	saw := d.recordDueSeen(a, r)
	d.addRequeued(r.Due)
	for _, fetch := range a.fetches {
		requeuesKnown := saw>>fetch.assignment.Lane&1 != 0
		if fetch.reason == forProbe { // without room for anything else, requeued rows are not looked for
			requeuesKnown = requeuesKnown || !slices.Contains(a.reopening, fetch.topic)
		}
		if fetch.reason != forOrphan && !r.Late[fetch.id] {
			d.applyFetch(fetch, r, requeuesKnown)
		}
	}
	d.endFetches(a, func(f fetch) bool { return r.Late[f.id] })
	d.caughtUp(a, r)
	d.acceptReady(r.Ready)
	for _, t := range r.Lanes {
		if l := d.activeLane(t.Assignment); l != nil {
			l.cursor = t.Cursor
		}
	}
	if r.DueRead {
		p.ManyDue, p.Hidden = d.acceptDue(a, r.Due)
		p.ManyDue = p.ManyDue || r.DueLate
	}
	for _, fetch := range a.fetches {
		f, found := r.ByID[fetch.id]
		// A row above the cursor is read in its order.
		if l := d.activeLane(fetch.assignment); fetch.reason == forOrphan && l != nil &&
			found && !f.Dead && fetch.id <= ours[fetch.assignment.Lane].Cursor {
			d.addOrphan(l, f.Row)
		}
	}
	p.Added, p.More = d.rows-before, d.wantsRead() || d.wantDue != noDue || r.DueLate
	return p
}

// PartRead applies the first ready rows of a read, if it asked for nothing by id; RowsRead applies the rest. Other
// events may come in between, as they may between the read and RowsRead.
func (d *Dispatcher) PartRead(now time.Time, ready []*Row) (added int) {
	d.now = now
	before := d.rows
	d.acceptReady(ready)
	return d.rows - before
}

func (d *Dispatcher) acceptReady(rows []*Row) {
	for _, row := range rows {
		if l := d.activeLane(row.Assignment); l != nil {
			d.accept(l, row, false)
		}
	}
}

// acceptDue accepts due rows. many means that a lane returned as many as it may, so there may be more; hidden, that its
// next read may return more of them. If no limit can grow and no row was kept, reading again soon is useless.
func (d *Dispatcher) acceptDue(a Request, rows []*Row) (many, hidden bool) {
	var counts, added [Lanes]int
	blocked := map[*key]int{}
	for _, row := range rows {
		l := d.activeLane(row.Assignment)
		if l == nil {
			continue
		}
		counts[row.Assignment.Lane]++
		if d.accept(l, row, true) {
			added[row.Assignment.Lane]++
		} else if k := l.keys[row.Key]; k != nil && len(k.blockedIDs) > 0 && row.Attempts == 0 {
			if blocked[k]++; blocked[k] == min(manyDelayed, d.maxRepeated()/4) {
				d.addDelayed(k)
			}
		}
	}
	for _, k := range a.blocked {
		if len(k.blockedIDs) == 0 && d.activeLane(k.lane.assignment) == k.lane { // it went on during the read
			d.readDue(dueOfOpen)
		}
	}
	for _, t := range a.assignments {
		if l := d.activeLane(t); l != nil {
			n, limit := counts[t.Lane], int(a.Due[t.Lane])
			l.manyDue = n >= limit
			more := l.manyDue && l.dueAgain < d.maxRepeated()
			hidden, many = hidden || more, many || more || l.manyDue && added[t.Lane] > 0
			share := max(1, limit-l.dueAgain)
			l.dueAgain = n - added[t.Lane] + min(added[t.Lane], share)
		}
	}
	return many, hidden
}

// ReadFailed takes back the requests of a read, so that the next one repeats them.
func (d *Dispatcher) ReadFailed(now time.Time, a Request) {
	d.now = now
	d.endFetches(a, func(fetch) bool { return true })
	d.endCatchUp(a)
	d.wantDue = max(d.wantDue, a.wantDue)
}

// endFetches ends requests; failed ones are repeated.
func (d *Dispatcher) endFetches(a Request, fails func(fetch) bool) {
	for _, fetch := range a.fetches {
		failed := fails(fetch)
		if fetch.topic != nil {
			fetch.topic.probeInRead = false
			d.update(fetch.topic)
		}
		l := d.activeLane(fetch.assignment)
		if l == nil {
			continue
		}
		switch {
		case fetch.reason == forRetry && failed && l.blocked[fetch.id] == fetch.blocked && fetch.blocked.index < 0:
			d.schedule(l, fetch.blocked, d.now)
		case fetch.reason == forOrphan && failed:
			d.orphans = append(d.orphans, fetch)
		}
	}
}

// wantsRead reports whether there is something to ask for immediately.
func (d *Dispatcher) wantsRead() bool {
	if d.stopped {
		return false
	}
	if len(d.orphans) > 0 {
		return true
	}
	if d.HasRoom() {
		if slices.ContainsFunc(d.lanes[:], func(l *lane) bool { return l != nil && l.toCatchUp.front != nil }) {
			return true
		}
		return slices.ContainsFunc(d.degraded, func(t *topic) bool { return !t.closed && t.deferredIn != 0 })
	}
	return false
}
