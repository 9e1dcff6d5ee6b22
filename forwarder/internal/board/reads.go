package board

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Room is how much more a read may bring into memory.
type Room = lanes.Room

// Request is what the board requests from a read.
type Request struct {
	IDs     []int64      // rows to read by id, pending or dead
	Catch   Catch        // deferred rows that may continue
	Due     [Lanes]int64 // maximum number of due rows of a lane, if this read looks for them,
	WantDue bool         // it is to look for them
	Closed  []string     // except of these topics: rows that there is no room for would hide others
	Blocked []string     // and except delayed rows of these keys, which have many,
	Guessed []string     // and of these topics, which are paused for unknown errors
	Room    Room

	terms     []Term
	fetches   []fetch
	blocked   []*key   // keys whose names are in Blocked
	reopening []*topic // topics that were closed and whose requeued rows it looks for
}

// Read is the complete result of a read.
type Read struct {
	Terms []TermRead // terms that were read and are still ours; the board's other terms are over
	// ByID has the rows of Request.IDs that are pending, or dead if the dead block their keys; others are gone. It also
	// has the dead rows of the keys of Request.Catch.
	ByID    map[int64]Found
	Caught  []*Row // rows of Request.Catch, in order of id for each lane
	Ready   []*Row // in order of id for each lane
	Due     []*Row // due rows, if DueRead
	DueRead bool
	Late    map[int64]bool // rows of Request.IDs for which there was no room
	DueLate bool           // there was not enough room for Due

	CaughtCut [Lanes]int64 // the lowest id of Caught for which there was no room; 0 = there was room
	counted   bool
	caught    [Lanes]struct{ rows, last int64 }
	fellDue   [Lanes]int64
}

// TermRead is a term that was read, and the cursor of its lane after this read.
type TermRead struct {
	Term Term
	Mark int64
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
	ManyDue bool // there may be more due rows
	Hidden  bool // and the next read sees more of them
}

// ReadBegins forgets settled rows, and returns what to read. One read at a time; RowsRead or ReadFailed ends it.
func (b *Board) ReadBegins(now time.Time) (a Request) {
	b.now = now
	b.forget()
	b.forgetDegraded()
	b.forgetAway()
	if b.stopped {
		return a
	}
	for _, l := range b.lanes {
		if l != nil && !l.handing {
			a.terms = append(a.terms, l.term)
		}
	}
	if len(a.terms) == 0 {
		return a
	}
	b.turn = (b.turn + 1) % Lanes
	// A little room is always available: the rows in memory may all wait behind a few hung calls.
	some := b.hasSomeRoom()
	if some {
		b.fetchRetries(&a, b.cfg.Rows/4+1) // first: a message that is due anyway serves as its topic's probe
	}
	b.fetchProbes(&a)
	if some {
		caught := b.requestCatchUp(&a, max(b.cfg.Rows/8+1, b.cfg.Rows-b.rows-len(a.IDs)))
		a.Room.Rows = max(b.cfg.Rows-b.rows-len(a.IDs)-caught, len(a.terms))
		a.Room.Others = caught
		a.Room.Bytes = max(b.cfg.Bytes-b.bytes, 1)
		b.fetchOrphans(&a)
		b.limitDue(&a)
		a.WantDue, b.wantDue = b.wantDue, false
		b.leaveOutDelayed(&a)
	}
	a.Room.Others += len(a.IDs)
	for _, t := range b.degraded {
		switch looks := some && t.unseen != 0 && (t.probeInRead || !t.closed); {
		case looks: // before its probe, or the rest of it, goes
			a.WantDue = true
			a.reopening = append(a.reopening, t)
		case t.guessed && !t.byOperator: // no row waits until requeued ones are known
			a.Guessed = append(a.Guessed, t.name)
		case t.closed && !b.wantTopics:
			a.Closed = append(a.Closed, t.name)
		}
	}
	return a
}

// hasSomeRoom reports whether anything but probes may be read. Slow topics may have one row each.
func (b *Board) hasSomeRoom() bool {
	return b.rows < 2*b.cfg.Rows+manyCalls && b.bytes < 2*b.cfg.Bytes
}

// HasRoom reports whether it is worth reading more: at least half of the room is free, and settling keeps up.
func (b *Board) HasRoom() bool {
	return b.rows <= b.cfg.Rows/2 && b.bytes <= b.cfg.Bytes/2 && b.unsettled <= 2*b.cfg.Rows
}

// limitDue shares the room for due rows among the lanes: half equally, half for those that have more. Rows that the
// last read returned but that were not brought into memory come again.
func (b *Board) limitDue(a *Request) {
	many := 0
	for _, t := range a.terms {
		if b.lanes[t.Lane].manyDue {
			many++
		}
	}
	for _, t := range a.terms {
		l := b.lanes[t.Lane]
		n := a.Room.Rows / 2 / len(a.terms)
		if l.manyDue {
			n += a.Room.Rows / 2 / many
		}
		a.Due[t.Lane] = int64(max(n, 1) + min(l.dueAgain, b.mostAgain()))
	}
}

const (
	mostDelayed = 64 // blocked keys whose delayed rows a read leaves out
	manyDelayed = 64 // rows of a key from which on they are left out
)

func (b *Board) addDelayed(k *key) {
	if len(b.delayed) < mostDelayed && !slices.Contains(b.delayed, k) {
		b.delayed = append(b.delayed, k)
	}
}

// leaveOutDelayed leaves out delayed rows of keys that are blocked and have many: they would come again and again, and
// hide other keys.
func (b *Board) leaveOutDelayed(a *Request) {
	b.delayed = slices.DeleteFunc(b.delayed, func(k *key) bool {
		return k.heads.len() == 0 || b.open(k.lane.term) != k.lane
	})
	a.blocked = slices.Clone(b.delayed)
	for _, k := range a.blocked {
		a.Blocked = append(a.Blocked, k.name)
	}
}

// mostAgain returns how many due rows of a lane may come again and again.
func (b *Board) mostAgain() int { return max(16, b.cfg.Deferred/Lanes) }

// forget drops settled rows from what is known. It must happen before a read begins, never during one: a read whose
// snapshot is older than the settling still returns the row, and would take it for a new one.
func (b *Board) forget() {
	for _, r := range b.settled {
		if l := b.open(r.Term); l != nil && r.call.results == 0 && l.known[r.ID] == r {
			delete(l.known, r.ID)
		}
	}
	clear(b.settled)
	b.settled = b.settled[:0]
}

// RowsRead applies a complete read. Rows that had waited come before rows that were read for the first time, and
// orphans come last: by then, rows that were read in the ordinary way are known.
func (b *Board) RowsRead(now time.Time, a Request, r Read) (p Progress) {
	b.now = now
	var ours [Lanes]TermRead
	for _, t := range r.Terms {
		ours[t.Term.Lane] = t
	}
	for _, t := range a.terms {
		if ours[t.Lane].Term != t && b.open(t) != nil {
			b.LanesLost(t)
		}
	}
	before := b.rows
	saw := b.sawDue(a, r)
	b.newHeads(r.Due)
	for _, fetch := range a.fetches {
		looked := saw>>fetch.term.Lane&1 != 0 && b.sawTopics
		if fetch.why == forProbe { // without room for anything else, requeued rows are not looked for
			looked = saw>>fetch.term.Lane&1 != 0 || !slices.Contains(a.reopening, fetch.topic)
		}
		if fetch.why != forOrphan && !r.Late[fetch.id] {
			b.fetched(fetch, r, looked)
		}
	}
	b.endFetches(a, func(f fetch) bool { return r.Late[f.id] })
	b.caughtUp(a, r)
	b.takeReady(r.Ready)
	if r.DueRead {
		p.ManyDue, p.Hidden = b.fellDue(a, r.Due)
		p.ManyDue = p.ManyDue || r.DueLate
	}
	for _, fetch := range a.fetches {
		f, found := r.ByID[fetch.id]
		// A row above the cursor is read in its order.
		if l := b.open(fetch.term); fetch.why == forOrphan && l != nil &&
			found && !f.Dead && fetch.id <= ours[fetch.term.Lane].Mark {
			b.addOrphan(l, f.Row)
		}
	}
	for _, t := range r.Terms {
		if l := b.open(t.Term); l != nil {
			l.mark = t.Mark
		}
	}
	p.Added, p.More = b.rows-before, b.wants() || b.wantDue || r.DueLate
	return p
}

// PartRead applies the first ready rows of a read, if it asked for nothing by id; RowsRead applies the rest. Other
// events may come in between, as they may between the read and RowsRead.
func (b *Board) PartRead(now time.Time, ready []*Row) (added int) {
	b.now = now
	before := b.rows
	b.takeReady(ready)
	return b.rows - before
}

func (b *Board) takeReady(rows []*Row) {
	for _, row := range rows {
		if l := b.open(row.Term); l != nil {
			b.accept(l, row, false)
		}
	}
}

// fellDue applies due rows. A lane hides more rows if it returned as many as it may, and may return more next time. If
// not, and nothing was new, it is not worth reading again soon.
func (b *Board) fellDue(a Request, rows []*Row) (many, hidden bool) {
	var counts, added [Lanes]int
	blocked := map[*key]int{}
	for _, row := range rows {
		l := b.open(row.Term)
		if l == nil {
			continue
		}
		counts[row.Term.Lane]++
		if b.accept(l, row, true) {
			added[row.Term.Lane]++
		} else if k := l.keys[row.Key]; k != nil && k.heads.len() > 0 && row.Attempts == 0 {
			if blocked[k]++; blocked[k] == min(manyDelayed, b.mostAgain()/4) {
				b.addDelayed(k)
			}
		}
	}
	for _, k := range a.blocked {
		b.wantDue = b.wantDue || k.heads.len() == 0 && b.open(k.lane.term) == k.lane // it went on during the read
	}
	for _, t := range a.terms {
		if l := b.open(t); l != nil {
			n, limit := counts[t.Lane], int(a.Due[t.Lane])
			l.manyDue = n >= limit
			more := l.manyDue && l.dueAgain < b.mostAgain()
			hidden, many = hidden || more, many || more || l.manyDue && added[t.Lane] > 0
			share := max(1, limit-l.dueAgain)
			l.dueAgain = n - added[t.Lane] + min(added[t.Lane], share)
		}
	}
	return many, hidden
}

// ReadFailed takes back the requests of a read, so that the next one repeats them.
func (b *Board) ReadFailed(now time.Time, a Request) {
	b.now = now
	b.endFetches(a, func(fetch) bool { return true })
	b.endCatch(a)
	b.wantDue = b.wantDue || a.WantDue
}

// endFetches ends requests; failed ones are repeated.
func (b *Board) endFetches(a Request, fails func(fetch) bool) {
	for _, fetch := range a.fetches {
		failed := fails(fetch)
		if fetch.topic != nil {
			fetch.topic.probeInRead = false
			b.update(fetch.topic)
		}
		l := b.open(fetch.term)
		if l == nil {
			continue
		}
		switch {
		case fetch.why == forRetry && failed && l.heads[fetch.id] == fetch.head && fetch.head.index < 0:
			b.schedule(l, fetch.head, b.now)
		case fetch.why == forOrphan && failed:
			b.orphans = append(b.orphans, orphan{fetch.term, fetch.id})
		}
	}
}

// wants reports whether there is something to ask for immediately.
func (b *Board) wants() bool {
	if b.stopped {
		return false
	}
	if len(b.orphans) > 0 {
		return true
	}
	if b.HasRoom() {
		if slices.ContainsFunc(b.lanes[:], func(l *lane) bool { return l != nil && l.catching.front != nil }) {
			return true
		}
		return slices.ContainsFunc(b.degraded, func(t *topic) bool { return !t.closed && t.lanes != 0 })
	}
	return false
}
