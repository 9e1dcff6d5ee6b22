package dispatch_test

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

// checkSignals records the goroutines that an event wakes. It checks that no other goroutine has work to do before it
// would wake on its own.
func (f *forwarder) checkSignals(e coordinator.Effects) {
	now := f.m.db.now
	for _, t := range f.coordinator.Free() {
		if !f.freed[t] && e.Wake&coordinator.WakeRebalancer == 0 {
			f.m.failf("forwarder %d: lane %d may be released, but the rebalancer is not woken", f.id, t.Lane)
		}
	}
	tick, read := f.dispatcher.NextTimes()
	if e.Wake&coordinator.WakeTimer != 0 {
		f.tickAt = tick
	}
	if !tick.IsZero() && tick.Before(f.tickAt) {
		f.m.failf("forwarder %d: something is due, but the timer is not woken", f.id)
	}
	if !read.IsZero() && read.Before(f.readAt) && !f.read && f.reading == nil && f.readsLanes() &&
		!f.applying && !f.readAt.Equal(f.pausedUntil) {
		f.m.failf("forwarder %d: a read is due, but the reader is not woken", f.id)
	}
	if e.Start > 0 && !now.Before(f.leaseUntil) {
		f.m.failf("forwarder %d starts %d workers after its lease expired: they end, and others start", f.id, e.Start)
	}
}

// checkLanes checks that the dispatcher and the cursors have the lanes that the coordinator reads.
func (f *forwarder) checkLanes() {
	for _, n := range f.m.lanes {
		l := f.coordinator.Lane(n)
		reading := l.Epoch != 0 && l.State == coordinator.Reading
		if reading && !f.dispatcher.Owns(f.term(n)) {
			f.m.failf("forwarder %d reads lane %d of epoch %d, which the dispatcher does not have", f.id, n, l.Epoch)
		}
		if _, epoch := f.cursors.At(n); (epoch != 0) != reading || reading && epoch != l.Epoch {
			f.m.failf("forwarder %d has lane %d as %+v, but reads it with epoch %d", f.id, n, l, epoch)
		}
	}
}

// checkReleased checks that released lanes are not released again.
func (f *forwarder) checkReleased(list []lease.Assignment) {
	for _, t := range f.coordinator.Free() {
		if slices.Contains(list, t) {
			f.m.failf("forwarder %d is to release lane %d again", f.id, t.Lane)
		}
	}
}

// checkPlan checks that a stopping forwarder acquires no lane.
func (f *forwarder) checkPlan(p lease.Plan) {
	if f.coordinator.Stopping() && len(p.Retake)+len(p.Take) > 0 {
		f.m.failf("forwarder %d stops, but is to take %v and %v", f.id, p.Retake, p.Take)
	}
}

// draining is a pending call of Drain.
type draining struct {
	began  int       // clock
	at     time.Time // rows due at that time must be read; zero = none
	others bool
	paused []string // topics that it returned
}

// drain calls Drain.
func (f *forwarder) drain(others bool) {
	d := draining{began: f.m.db.tick(), at: f.m.db.now, others: others}
	id := f.coordinator.DrainBegins(d.others)
	f.drains[id] = d
	f.logf("drain %d begins, others %v", id, d.others)
	f.take()
}

// drained checks the result of a Drain.
func (f *forwarder) drained(d coordinator.Drained) {
	call, waits := f.drains[d.ID]
	if !waits {
		return // it only made a read return due rows
	}
	delete(f.drains, d.ID)
	f.logf("drain %d completes: %+v", d.ID, d)
	switch {
	case d.Closed && !f.coordinator.Stopping():
		f.m.failf("forwarder %d ends a Drain because it stops, but does not stop", f.id)
	case d.Closed:
	case call.others && f.m.db.alive(deadMember):
		f.m.failf("forwarder %d completes a Drain while a dead forwarder's lease has not expired", f.id)
	case len(f.toLoad()) > 0:
		f.m.failf("forwarder %d completes a Drain while lanes load: %v", f.id, f.toLoad())
	default:
		if _, missing := f.coordinator.Owned(); missing {
			f.m.failf("forwarder %d completes a Drain while lanes are missing from its share", f.id)
		}
		for _, topic := range d.Paused {
			if !slices.Contains(f.paused, topic) {
				f.m.failf("forwarder %d ends a Drain for topic %s, which no operator has paused", f.id, topic)
			}
		}
		call.paused = d.Paused
		f.checkArrived("completes a Drain", call, func(lane int16) dispatch.Assignment { return f.term(lane) })
	}
}

// readsLanes reports whether there is a lane to read.
func (f *forwarder) readsLanes() bool {
	for n := range lanes.Count {
		if l := f.coordinator.Lane(int16(n)); l.Epoch != 0 && l.State == coordinator.Reading {
			return true
		}
	}
	return false
}
