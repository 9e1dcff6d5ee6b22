package dispatch_test

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// cutOff is the effect of a server crash on a forwarder: calls in flight fail, even if the server completed them.
func (f *forwarder) cutOff() {
	if r := f.reading; r != nil && (r.answer == nil || f.m.chance(50)) {
		f.readFailed(r)
	}
	if s := f.settling; s != nil && (!s.committed || f.m.chance(50)) {
		f.settling = nil
	}
	if f.m.chance(50) { // unless they had their responses
		f.loading, f.checking, f.keeping, f.scanned = nil, nil, nil, nil
	}
	clear(f.found) // what an operator did since may be undone
}

// busy reports whether work is in flight that can continue without time passing.
func (f *forwarder) busy() bool {
	return f.planned || f.reading != nil || f.loading != nil || len(f.toLoad()) > 0 || f.settling != nil ||
		len(f.calls) > 0 || f.launched > 0 ||
		f.settle || f.read || f.dirty || len(f.left.published)+len(f.left.failed) > 0
}

// check compares the dispatcher's counters with its contents, and both with the limits.
func (f *forwarder) check(thoroughly bool) {
	counts, cfg := f.dispatcher.Counts(), f.m.cfg
	hung, calls := 0, make([]*dispatch.Call, 0, len(f.calls))
	for _, c := range f.calls {
		calls = append(calls, c.Call)
		if c.timedOut {
			hung++
		}
	}
	if thoroughly {
		if n := len(f.coordinator.InFlight()); n != len(calls) {
			f.m.failf("forwarder %d counts %d calls in flight, but %d are", f.id, n, len(calls))
		}
		if problem := f.dispatcher.Check(calls); problem != "" {
			f.m.failf("forwarder %d: %s", f.id, problem)
		}
	}
	f.checkLanes()
	for r := range f.unsettled {
		msg := f.m.messages[r.UUID]
		settles := msg.is(r.UUID, r.Generation) // otherwise an operator has requeued it, and this result settles nothing
		if settles && !msg.published && f.reads(r.Assignment) && !f.dispatcher.Knows(r.Assignment, r.ID) {
			f.m.failf("forwarder %d forgot row %d before its success was settled", f.id, r.ID)
		}
	}
	switch {
	case counts.Young+counts.Slow != len(f.calls)-hung || counts.Hung != hung:
		f.m.failf("forwarder %d counts %+v, with %d calls in flight, %d of them hung", f.id, counts, len(f.calls), hung)
	case counts.Young > cfg.Concurrency || counts.Young+counts.Slow+counts.Hung > 8*cfg.Concurrency:
		f.m.failf("forwarder %d has too many calls in flight: %+v", f.id, counts)
	case counts.Waiting > cfg.Deferred+8*cfg.Concurrency: // rows in flight may always wait
		f.m.failf("forwarder %d has %d waiting keys, want at most %d", f.id, counts.Waiting, cfg.Deferred)
	case counts.Rows > 2*cfg.Rows+f.lanesRead()+2*len(f.m.topics)+8:
		f.m.failf("forwarder %d has %d rows in memory, with room for %d", f.id, counts.Rows, cfg.Rows)
	case counts.Unsettled < len(f.left.published)+len(f.left.failed):
		f.m.failf("forwarder %d counts %d unsettled rows, but settles %d", f.id, counts.Unsettled,
			len(f.left.published)+len(f.left.failed))
	}
}

// lanesRead is the number of lanes that may each return one row regardless of the limits. One range of ids may be read
// for all of them, and then a lane gets the parts that others have not used.
func (f *forwarder) lanesRead() int {
	if f.m.allLanes {
		return dispatch.Lanes
	}
	return len(f.m.lanes)
}

// checkQuiet checks that no row seen by the read is waiting when the dispatcher reports quiet, as Drain promises.
func (f *forwarder) checkQuiet(r *reading) {
	if f.dispatcher.Quiet() {
		f.checkArrived("is quiet", draining{began: r.began}, func(lane int16) dispatch.Assignment {
			return dispatch.Assignment{Lane: lane, Epoch: r.req.Cursors.Epochs[lane]}
		})
	}
}

// checkArrived checks that all due messages committed before some moment have arrived, in the lanes being read. That
// includes messages that an operator requeued before it. Messages behind one that waits for a retry or for a paused
// topic may still be missing.
func (f *forwarder) checkArrived(what string, d draining, term func(lane int16) dispatch.Assignment) {
	if !f.m.calm {
		return // another owner may have settled the blocked row of a key
	}
	held := map[string]bool{}
	for _, msg := range f.m.db.table {
		if f.waitsFor(msg, d) {
			held[msg.key] = msg.key != ""
		}
	}
	for _, msg := range f.m.db.table {
		if !f.reads(term(msg.lane)) || held[msg.key] || f.m.db.locked[msg] || f.waitsFor(msg, d) {
			continue
		}
		due := msg.due.IsZero() || msg.attempts > 0 && msg.key != "" || !msg.due.After(d.at)
		if msg.pending() && msg.tx.committed < d.began && due {
			f.m.failf("forwarder %d %s while row %v waits", f.id, what, msg)
		}
	}
}

// waitsFor reports whether a message waits for its retry, as far as the forwarder knows, or for an operator.
func (f *forwarder) waitsFor(msg *record, d draining) bool {
	due, told := f.due[msg.uuid]
	switch {
	case msg.visible() && !msg.published && msg.dead && f.m.db.blockKeyOnDead:
		return true
	case msg.discarded && !msg.pending(): // its key waits until the maintainer notices it
		t := f.term(msg.lane)
		return f.dispatcher.Knows(t, msg.id) || slices.Contains(f.dispatcher.WaitingIDs(t), msg.id)
	case !msg.pending():
		return false
	case slices.Contains(d.paused, msg.topic):
		return true
	case !msg.due.IsZero() && slices.Contains(f.paused, msg.topic) && f.full[msg.lane]:
		return true // a topic may go unnamed if all its messages are behind more due ones than a read returns
	case msg.acted > 0: // if it is not due, only the sweep finds it
		return msg.acted > d.began || msg.due.IsZero() || msg.due.After(d.at)
	}
	return msg.attempts > 0 && (!told || msg.delayed || due.After(f.m.db.now))
}

// checkStopped checks that a stop left nothing behind.
func (f *forwarder) checkStopped() {
	if len(f.drains) > 0 {
		f.m.failf("forwarder %d has stopped while %d calls of Drain still wait", f.id, len(f.drains))
	}
	if c := f.dispatcher.Counts(); c.Young+c.Slow+c.Unsettled > 0 {
		f.m.failf("forwarder %d has stopped with %+v", f.id, c)
	}
}

// checkEnd checks that nothing is left at the end.
func (f *forwarder) checkEnd() {
	if !f.dispatcher.Quiet() {
		f.m.failf("forwarder %d is not quiet at the end: %+v", f.id, f.dispatcher.Counts())
	}
	if c := f.dispatcher.Counts(); c != (dispatch.Counts{}) {
		f.m.failf("forwarder %d has %+v at the end", f.id, c)
	}
	f.m.db.now = f.m.db.now.Add(time.Hour)
	f.dispatcher.Tick(f.m.db.now)
	f.dispatcher.ReadBegins(f.m.db.now) // forgets
	f.dispatcher.ReadFailed(f.m.db.now, dispatch.Request{})
	s := f.dispatcher.Sizes()
	if f.coordinator.Stopping() {
		s.Degraded = 0 // a paused topic stays paused if nothing more is published
	}
	if s.Degraded+s.Keys+s.Blocked-s.Keyless+s.Lows > 0 {
		f.m.failf("forwarder %d remembers %+v at the end", f.id, s)
	}
	for r, t := range f.told {
		if t.ok && !t.okTaken {
			f.m.failf("forwarder %d got the success of row %d, but the settler never did", f.id, r.ID)
		}
	}
	for _, n := range f.m.lanes {
		mark, _ := f.cursors.At(n)
		if above, all := f.dispatcher.KnownRows(f.term(n), mark); above+all > 0 {
			f.m.failf("forwarder %d knows %d and %d rows of lane %d at the end", f.id, above, all, n)
		}
	}
}
