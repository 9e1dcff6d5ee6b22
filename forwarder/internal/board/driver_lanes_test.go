package board_test

import (
	"slices"
	"strconv"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

type heldLane struct {
	epoch   int64
	handing bool
	free    bool // the board says so
}

type keeping struct {
	plan  lease.Plan
	taken []lease.Term
	done  bool
}

// isFree checks that nothing of a lane that may be given back is under way.
func (f *forwarder) isFree(t board.Term) {
	f.logf("may give back lane %d, epoch %d", t.Lane, t.Epoch)
	h := f.held[t.Lane]
	if h == nil || h.epoch != t.Epoch {
		return // it is over: the answer that made it free said that as well
	}
	if !h.handing || h.free {
		f.m.failf("forwarder %d: lane %d of epoch %d is called free, which is not being handed back", f.id, t.Lane, t.Epoch)
		return
	}
	h.free = true
	for _, c := range f.calls {
		if c.Row.Term == t && !c.timedOut {
			f.m.failf("forwarder %d: lane %d is called free while row %d is under way", f.id, t.Lane, c.Row.ID)
		}
	}
	for _, r := range f.left.published {
		if r.Term == t {
			f.m.failf("forwarder %d: lane %d is called free while the success of row %d is unsettled", f.id, t.Lane, r.ID)
		}
	}
	for _, r := range f.left.failed {
		if r.Row.Term == t {
			f.m.failf("forwarder %d: lane %d is called free while the failure of row %d is unsettled", f.id, t.Lane, r.Row.ID)
		}
	}
	for r, told := range f.told {
		if r.Term == t && (told.ok && !told.okTaken) {
			f.m.failf("forwarder %d: lane %d is called free while nobody took the success of row %d", f.id, t.Lane, r.ID)
		}
	}
}

func (f *forwarder) term(lane int16) board.Term {
	if h := f.held[lane]; h != nil {
		return board.Term{Lane: lane, Epoch: h.epoch}
	}
	return board.Term{Lane: lane}
}

func sortTerms(terms []board.Term) {
	slices.SortFunc(terms, func(a, b board.Term) int { return int(a.Lane) - int(b.Lane) })
}

// lose ends terms.
func (f *forwarder) lose(terms []board.Term) {
	f.forget(terms)
	f.board.LanesLost(terms...)
	f.take()
}

// forget drops terms of which the board finds out by itself that they are over.
func (f *forwarder) forget(terms []board.Term) {
	for _, t := range terms {
		if h := f.held[t.Lane]; h != nil && h.epoch == t.Epoch {
			if slices.Contains(f.m.lanes, t.Lane) {
				f.logf("loses lane %d, epoch %d", t.Lane, t.Epoch)
			}
			delete(f.held, t.Lane)
			f.window.Drop(t.Lane)
		}
		if f.toLoad[t.Lane] == t.Epoch {
			delete(f.toLoad, t.Lane)
		}
	}
}

// keeper makes a step of the goroutine that keeps the lease: it looks, it changes the lanes, it learns what came of it.
func (f *forwarder) keeper() {
	k := f.keeping
	switch {
	case k == nil:
		f.look()
	case !k.done:
		f.change(k)
	default:
		f.keeping = nil
		for _, t := range k.taken {
			if f.m.chance(5) && !f.m.finishing {
				continue // the answer was lost
			}
			f.toLoad[t.Lane] = t.Epoch
		}
		f.retake = false
	}
}

func (f *forwarder) look() {
	began := f.m.db.now
	f.m.db.heartbeat(f.id, f.stopping)
	f.leaseUntil = began.Add(f.m.db.leases)
	f.take()
	members, lanes := f.m.db.view(f.id)
	v := lease.View{Me: strconv.Itoa(f.id), Members: members, Lanes: lanes, Held: make(map[int16]lease.Held, laneCount),
		Stopping: f.stopping, TTL: f.m.db.leases, Short: f.short}
	for n, h := range f.held {
		v.Held[n] = lease.Held{Epoch: h.epoch, Handing: h.handing}
	}
	for n, epoch := range f.toLoad {
		v.Held[n] = lease.Held{Epoch: epoch}
	}
	if f.loading != nil {
		v.Held[f.loading.lane] = lease.Held{Epoch: f.loading.epoch}
	}
	f.looked()
	f.keeping = &keeping{plan: v.Plan()}
	f.short = f.keeping.plan.Short
}

// looked loads heads too early.
func (f *forwarder) looked() {
	if f.m.variant.headsBeforeTake && f.m.thief != f {
		f.headsBefore = f.m.allHeads()
	}
}

func (f *forwarder) change(k *keeping) {
	k.done = true
	if len(k.plan.Lost) > 0 {
		f.lose(terms(k.plan.Lost))
	}
	for _, t := range terms(k.plan.HandBack) {
		f.handBack(t)
	}
	var free []lease.Term
	for n, h := range f.held {
		if h.free || h.handing && f.m.variant.freeAtOnce {
			free = append(free, lease.Term{Lane: n, Epoch: h.epoch})
		}
	}
	if len(free) > 0 {
		f.m.db.giveBack(f.id, free)
		list := terms(free)
		sortTerms(list)
		f.lose(list)
	}
	k.taken = append(f.m.db.retake(f.id, k.plan.Retake), f.m.db.take(f.id, k.plan.Take)...)
	if len(k.plan.Retake)+len(k.plan.Take) > 0 {
		f.logf("retakes or takes %v", f.usedTerms(k.taken))
	}
}

func (f *forwarder) usedTerms(list []lease.Term) []lease.Term {
	return slices.DeleteFunc(slices.Clone(list), func(t lease.Term) bool { return !slices.Contains(f.m.lanes, t.Lane) })
}

func terms(list []lease.Term) []board.Term {
	of := make([]board.Term, len(list))
	for i, t := range list {
		of[i] = board.Term{Lane: t.Lane, Epoch: t.Epoch}
	}
	return of
}

// handBack stops work on a lane.
func (f *forwarder) handBack(t board.Term) {
	if f.toLoad[t.Lane] == t.Epoch { // it was never started
		delete(f.toLoad, t.Lane)
		f.m.db.giveBack(f.id, []lease.Term{{Lane: t.Lane, Epoch: t.Epoch}})
		return
	}
	h := f.held[t.Lane]
	if h == nil || h.epoch != t.Epoch || h.handing {
		return
	}
	if slices.Contains(f.m.lanes, t.Lane) {
		f.logf("hands back lane %d, epoch %d", t.Lane, t.Epoch)
	}
	h.handing = true
	if !slices.Contains(f.m.lanes, t.Lane) {
		h.free = true
		return
	}
	f.window.Drop(t.Lane)
	f.board.HandBack(t)
	f.take()
}
