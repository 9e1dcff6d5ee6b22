package dispatch_test

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

type reading struct {
	req    coordinator.ReadRequest
	began  int // clock
	answer *answer
	full   [laneCount]bool // lanes with as many due rows as it may return
	found  map[rowOf]int   // requeued rows, and when an operator last changed them

	// Outcomes of fetching the payloads of rows that were read without one.
	wanted        []*dispatch.Row
	asked, failed bool
	came, late    map[int64]bool
	timedOut      bool
}

type loading struct {
	term    dispatch.Assignment
	life    string
	from    int64
	done    bool // all pages are read
	rested  bool // a read followed the last page
	blocked []dispatch.BlockedRow
	uuids   []string
}

// reader makes a step of the reading goroutine.
func (f *forwarder) reader() {
	switch r := f.reading; {
	case f.m.variant.otherEpoch && r != nil && f.loading == nil && len(f.toLoad()) > 0:
		f.beginLoad()
	case f.m.variant.otherEpoch && f.loading != nil:
		f.loadPage()
	case f.late != nil && f.m.chance(50):
		r, f.late = f.late, nil
		f.endRead(r)
	case r != nil && r.answer == nil:
		f.evaluate(r)
	case r != nil && f.m.variant.readsOverlap && f.late == nil:
		f.late, f.reading = r, nil
	case r != nil && f.m.withholds && !r.asked:
		f.askPayloads(r)
	case r != nil && len(r.wanted) > 0:
		f.fetchPayloads(r)
	case r != nil:
		f.reading = nil
		f.endRead(r)
	case f.loading != nil && f.loading.done:
		f.loaded()
	case f.loading != nil && !f.loading.rested && f.readsLanes() && (f.noReadWhile == nil || !f.noReadWhile()):
		f.loading.rested = true // each page of a lane is followed by a read of the others
		f.beginRead()
	case f.loading != nil:
		f.loading.rested = false
		f.loadPage()
	case f.planned:
		f.planned = false
		f.beginRead()
	case f.coordinator.Stopping():
	case len(f.toLoad()) > 0:
		f.beginLoad()
	case f.m.allLanes && f.loadUnused():
	case f.wantsRead():
		if f.planned = f.m.apart; !f.planned {
			f.beginRead()
		}
	}
}

// wantsRead reports whether the engine would read now.
func (f *forwarder) wantsRead() bool {
	if f.noReadWhile != nil && f.noReadWhile() {
		return false
	}
	if f.m.tight && !f.read && f.m.db.now.Before(f.readAt) {
		return false // it was not woken
	}
	plan := f.coordinator.PlanRead(f.m.db.now, f.dirty)
	if f.read, f.readAt = false, (time.Time{}); plan.Wait > 0 {
		f.readAt = f.m.db.now.Add(plan.Wait)
	}
	return !f.m.tight || plan.Wait == 0
}

// beginLoad starts loading the blocked rows of an acquired lane.
func (f *forwarder) beginLoad() {
	f.loading = &loading{term: f.toLoad()[0], life: f.m.db.lifeName()}
	f.loadPage()
}

// loadUnused starts the lanes without messages.
func (f *forwarder) loadUnused() (any bool) {
	for _, t := range f.coordinator.Assignments() {
		if f.coordinator.Lane(t.Lane).State == coordinator.Taken {
			any = true
			f.coordinator.LaneLoaded(f.m.db.now, t, f.m.db.lifeName(), dispatch.NewTakenLane(f.m.db.now, t, nil))
			f.take()
		}
	}
	return any
}

func (f *forwarder) loadPage() {
	l := f.loading
	page := 1 + f.m.rng.IntN(5)
	list := f.m.db.blocked(l.term.Lane, l.from, page)
	if f.m.variant.blockedNotLoaded {
		list = nil
	}
	for _, v := range list {
		l.blocked = append(l.blocked, f.m.blockedRow(v))
		l.from = v.id
		l.uuids = append(l.uuids, v.uuid)
	}
	if l.done = len(list) < page; l.done && !f.m.apart {
		f.loaded()
	}
}

// loaded starts a lane whose blocked rows are loaded.
func (f *forwarder) loaded() {
	l := f.loading
	f.loading = nil
	if f.m.variant.blockedBeforeTake {
		l.blocked = f.blockedBefore[l.term.Lane]
	}
	f.logf("loaded lane %d, epoch %d, blocked rows %v", l.term.Lane, l.term.Epoch, l.blocked)
	for i, uuid := range l.uuids {
		f.due[uuid] = f.m.db.now.Add(l.blocked[i].Wait)
	}
	f.coordinator.LaneLoaded(f.m.db.now, l.term, l.life, dispatch.NewTakenLane(f.m.db.now, l.term, l.blocked))
	f.more = true
	f.take()
	if f.dispatcher.Owns(l.term) && f.coordinator.Lane(l.term.Lane).Epoch != l.term.Epoch {
		f.m.failf("forwarder %d starts lane %d of epoch %d, which it lost while loading", f.id, l.term.Lane, l.term.Epoch)
	}
}

func (f *forwarder) beginRead() {
	f.writers = nil
	if f.m.chance(30) {
		f.writers = f.m.db.writers()
		f.coordinator.WritersSeen(f.writers)
		f.m.others(30)
	}
	if f.m.variant.lowsTooHigh {
		f.dispatcher.RaiseLows()
	}
	if f.m.variant.noCatch {
		f.dispatcher.ForgetLows()
	}
	if f.m.chance(20) { // it also reads due rows
		defer f.coordinator.DrainEnds(f.coordinator.DrainBegins(false))
	}
	r, ok := &reading{began: f.m.db.tick()}, false
	if r.req, ok = f.coordinator.ReadBegins(f.m.db.now, true); !ok {
		return
	}
	if f.m.variant.triesFromTheTop {
		r.req.Dispatch.AskOther(f.m.db.lastOf)
	}
	f.take()
	w := &r.req.Cursors
	w.Span = min(w.Span, f.m.stretch())
	c := &r.req.Dispatch.CatchUp
	for n, limit := range c.Limits {
		if most := f.m.stretch(); limit > 0 && c.From[n]+most < c.Upto[n] {
			c.Upto[n] = c.From[n] + most
			c.Short |= 1 << n
		}
	}
	if f.m.withholds {
		w.Whole = 5
	}
	f.reading, f.dirty, f.read, f.more = r, false, false, false
	f.logf("begins a read: cursors %v, limits %v, span %d, ids %v", f.used(f.mark), f.used(func(n int16) int64 {
		return w.Limits[n]
	}), w.Span, r.req.Dispatch.IDs)
	if !c.None() {
		f.logf("catches up from %v, to %v, limits %v, all of %b, keys %q", f.used(func(n int16) int64 { return c.From[n] }),
			f.used(func(n int16) int64 { return c.Upto[n] }), f.used(func(n int16) int64 { return c.Limits[n] }), c.All, c.Keys)
	}
}

// used leaves out the lanes without messages.
func (f *forwarder) used(list func(lane int16) int64) []int64 {
	if !f.m.logging {
		return nil
	}
	of := make([]int64, len(f.m.lanes))
	for i, n := range f.m.lanes {
		of[i] = list(n)
	}
	return of
}

// evaluate takes the read's snapshot.
func (f *forwarder) evaluate(r *reading) {
	if f.m.chance(f.m.readFails) {
		f.readFailed(r)
		return
	}
	w := &r.req.Cursors
	q := query{owner: f.id, xids: w.Xids, bounds: w.Bounds, los: w.Los, segmentBounds: w.SegmentBounds,
		stretch: w.Span, ids: r.req.Dispatch.IDs, due: r.req.Due, single: w.Single}
	if f.m.leavesOut {
		q.closed, q.blocked = r.req.Dispatch.Closed, r.req.Dispatch.Blocked
	}
	for n, epoch := range w.Epochs {
		if epoch == 0 {
			continue
		}
		l := laneQuery{
			lane: int16(n), epoch: epoch, mark: w.Cursors[n], rows: w.Limits[n], rewound: w.Rewound[n],
			due:   int64(r.req.Dispatch.Due[n]),
			catch: f.m.variant.catchOf(&r.req.Dispatch.CatchUp, n),
		}
		q.lanes = append(q.lanes, l)
	}
	f.m.variant.spoilQuery(f, &q)
	before := f.m.db.dueRequeued()
	a := f.m.db.fetch(q, func() { f.m.others(30) })
	f.lastSeq = a.seq
	r.answer = &a
	r.countDue()
	r.found = f.requeued(r, before)
	f.logf("reads: snapshot %d:%v next %d seq %d rewind %d, ready %v, by id %v, due %v, caught %v", a.xmax, a.running,
		a.nextXid, a.seq, a.rewind, idsOf(a.ready), idsOf(a.byID), idsOf(a.due), idsOf(a.caught))
}

// countDue records in which lanes a read hits its limit of due rows.
func (r *reading) countDue() {
	left := r.req.Dispatch.Due
	for _, v := range r.answer.due {
		left[v.lane]--
	}
	for n := range left {
		r.full[n] = left[n] <= 0
	}
}

// requeued lists which of the requeued rows a read of due rows finds, as they block their keys: all of the lanes in
// which it does not hit its limit.
func (f *forwarder) requeued(r *reading, due map[version]int) map[rowOf]int {
	found := map[rowOf]int{}
	for v, acted := range due {
		if r.req.Due && r.answer.owned[v.lane] && !r.full[v.lane] {
			found[rowOf{f.termOf(r, v.lane), v.uuid, v.seen.act()}] = acted
		}
	}
	return found
}

func idsOf(list []version) []int64 {
	of := make([]int64, len(list))
	for i, v := range list {
		of[i] = v.id
	}
	return of
}

// askPayloads fetches payloads that the response left out.
func (f *forwarder) askPayloads(r *reading) {
	r.asked = true
	read := f.readOf(r)
	r.wanted = f.coordinator.WantedPayloads(&r.req, &coordinator.ReadAnswer{Read: read})
	if !f.m.chance(50) && len(r.wanted) > 0 {
		f.fetchPayloads(r)
	}
}

// received returns the size of the payloads that a read brought itself.
func (f *forwarder) received(r *reading) (bytes int64) {
	a := r.answer
	for i, list := range [...][]version{a.byID, a.ready, a.caught, a.due} {
		for _, v := range list {
			if row := f.row(r, v, i == 3); !row.Large {
				bytes += int64(v.size)
			}
		}
	}
	return bytes
}

// fetchPayloads is the statement that reads them.
func (f *forwarder) fetchPayloads(r *reading) {
	wanted, room := r.wanted, max(0, r.req.Cursors.Bytes-f.received(r))
	r.wanted = nil
	most := len(wanted)
	if f.m.chance(f.m.readFails) {
		most, r.timedOut = f.m.rng.IntN(most), f.m.chance(50)
	}
	r.came, r.late = f.m.db.payloads(wanted, room, most), map[int64]bool{}
	r.failed = most < len(wanted) && len(r.came) == 0
	for _, row := range wanted {
		if !r.came[row.ID] {
			r.late[row.ID] = true
		}
	}
	f.logf("reads payloads of %d rows with room for %d: late %v", len(wanted), room, slices.Sorted(maps.Keys(r.late)))
}

// readOf returns the dispatcher's input, before missing rows are removed from it.
func (f *forwarder) readOf(r *reading) dispatch.Read {
	read := dispatch.Read{ByID: map[int64]dispatch.Found{}, DueRead: r.req.Due}
	for _, v := range r.answer.byID {
		read.ByID[v.id] = dispatch.Found{Row: f.row(r, v, false), Dead: v.seen.dead}
	}
	for _, v := range r.answer.ready {
		read.Ready = append(read.Ready, f.row(r, v, false))
	}
	for _, v := range r.answer.caught {
		read.Caught = append(read.Caught, f.row(r, v, false))
	}
	for _, v := range r.answer.due {
		read.Due = append(read.Due, f.row(r, v, true))
	}
	return read
}

func (f *forwarder) readFailed(r *reading) {
	f.logf("fails to read")
	f.reading, f.more, f.read = nil, true, true
	f.coordinator.ReadFailed(f.m.db.now, &r.req, f.m.chance(50), f.pause())
	f.take()
}

func (f *forwarder) endRead(r *reading) {
	if f.m.chance(f.m.readFails) {
		f.readFailed(r)
		return
	}
	a := f.answerOf(r)
	f.m.variant.spoilAnswer(f, r, &a.Answer)
	if f.coordinator.ReadAnswered(f.m.db.now, &r.req, &a) {
		f.logf("finds a new incarnation")
		f.take()
		f.coordinator.ReadFailed(f.m.db.now, nil, false, f.pause()) // no request to withdraw
		f.take()
		return
	}
	f.take()
	f.logf("ends the read: cursors %v", f.used(f.mark))
	switch v := f.m.variant; {
	case v.waitsIgnored:
		f.dispatcher.ForgetWaits()
	case v.limitIgnored:
		for n := range r.req.Dispatch.CatchUp.Limits {
			r.req.Dispatch.CatchUp.Limits[n] *= 1000
		}
	case v.triesFromTheTop:
		f.dispatcher.TakeAnyway(r.req.Dispatch, a.Read)
	}
	f.meanwhile()
	if a.HasPart(&r.req, 1) && f.m.chance(30) {
		f.coordinator.PartRead(f.m.db.now, &a, 1+f.m.rng.IntN(len(a.Read.Ready)-1))
		f.take()
		f.meanwhile()
	}
	if r.req.Due && len(r.req.Dispatch.Closed) == 0 {
		f.full = r.full
	}
	f.more = f.coordinator.ReadEnds(f.m.db.now, &r.req, &a).More
	maps.Copy(f.found, r.found)
	f.read = true // it reads again
	f.take()
	if !f.more {
		f.checkQuiet(r)
	}
	if r.failed {
		f.coordinator.ReadFailed(f.m.db.now, nil, r.timedOut, f.pause())
		f.take()
	}
}

// meanwhile lets the other goroutines make steps while the reading one applies an answer.
func (f *forwarder) meanwhile() {
	if f.m.chance(60) {
		return
	}
	f.applying = true
	for range 1 + f.m.rng.IntN(10) {
		switch p := f.m.rng.IntN(100); {
		case p < 25:
			f.worker()
		case p < 50:
			f.publisher()
		case p < 75:
			f.settler()
		case p < 80:
			f.timer()
		case p < 90:
			if f.m.maintains {
				f.maintainer()
			}
		case p < 92 && f.m.allLanes && !f.m.finishing && len(f.drains) < 2:
			f.drain(false)
		default:
			f.rebalancer()
		}
	}
	f.applying = false
}

// pause returns how long the reading goroutine waits after an error.
func (f *forwarder) pause() (pause time.Duration) {
	if f.pausedUntil = (time.Time{}); !f.m.finishing && f.m.chance(50) {
		pause = time.Duration(f.m.rng.IntN(3000)) * time.Microsecond
		f.pausedUntil = f.m.db.now.Add(pause)
	}
	return pause
}

// answerOf returns the complete response to a read.
func (f *forwarder) answerOf(r *reading) coordinator.ReadAnswer {
	a := r.answer
	answer := coordinator.ReadAnswer{Read: f.readOf(r), Answer: cursor.Answer{
		Incarnation: a.life,
		Snapshot:    cursor.Snapshot{Xmax: a.xmax, InProgress: a.running, NextXid: a.nextXid, Seq: a.seq},
		Rewind:      a.rewind, Rows: len(a.ready) + len(a.byID) + len(a.due) + len(a.caught),
		Took: time.Duration(f.m.rng.IntN(100)) * time.Microsecond, TimedOut: r.timedOut,
	}}
	if f.m.chance(10) {
		answer.Took *= 1000
	}
	for n := range a.owned {
		answer.Owned[n] = true
	}
	for _, v := range a.ready {
		answer.Counts[v.lane]++
		answer.Last[v.lane] = v.id
		if answer.First == 0 || v.id < answer.First {
			answer.First = v.id
		}
	}
	answer.Cut = answer.Read.RemoveLarge(r.late)
	return answer
}

func (f *forwarder) mark(lane int16) int64 {
	mark, _ := f.cursors.At(lane)
	return mark
}

// termOf returns the assignment for which a lane was read.
func (f *forwarder) termOf(r *reading, lane int16) dispatch.Assignment {
	if f.m.variant.otherEpoch {
		return f.term(lane)
	}
	return dispatch.Assignment{Lane: lane, Epoch: r.req.Cursors.Epochs[lane]}
}

// row returns the dispatcher's input for a row. A due row that blocks its key, or waits for the rows before it, comes
// without its payload.
func (f *forwarder) row(r *reading, v version, due bool) *dispatch.Row {
	from := r.req.Cursors.Cursors[v.lane]
	if r.answer.rewind >= 0 {
		from = min(from, r.answer.rewind)
	}
	blocks := due && v.key != "" && (v.seen.attempts > 0 || v.id > from)
	large := (blocks || int64(v.size) > r.req.Cursors.Whole) && !r.came[v.id]
	return &dispatch.Row{
		Large: large, ID: v.id, Assignment: f.termOf(r, v.lane), Key: v.key, UUID: v.uuid, Topic: v.topic,
		Payload:   make([]byte, v.size),
		CreatedAt: f.m.db.now, Attempts: v.seen.attempts, Untried: v.seen.untried, Incarnation: r.answer.life,
		Generation: v.seen.act(),
	}
}
