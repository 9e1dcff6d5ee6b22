package dispatch_test

import (
	"slices"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

// keeping is the rebalancer's current work.
type keeping struct {
	began   time.Time
	unsure  bool // the lease had expired
	members []lease.Member
	lanes   []lease.Lane
	taken   []lease.Assignment
	done    bool
}

// isFree checks that nothing in flight belongs to a lane that may be released.
func (f *forwarder) isFree(t dispatch.Assignment) {
	f.logf("may release lane %d, epoch %d", t.Lane, t.Epoch)
	l := f.coordinator.Lane(t.Lane)
	if l.Epoch != t.Epoch {
		return // already ended, by the event that freed it
	}
	if l.State != coordinator.Releasing {
		f.m.failf("forwarder %d: lane %d of epoch %d is reported free but is not being released", f.id, t.Lane, t.Epoch)
		return
	}
	for _, c := range f.calls {
		if c.Row.Assignment == t && !c.timedOut {
			f.m.failf("forwarder %d: lane %d is reported free while row %d is in flight", f.id, t.Lane, c.Row.ID)
		}
	}
	for _, r := range f.left.published {
		if r.Assignment == t {
			f.m.failf("forwarder %d: lane %d is reported free while the success of row %d is unsettled", f.id, t.Lane, r.ID)
		}
	}
	for _, r := range f.left.failed {
		if r.Row.Assignment == t {
			f.m.failf("forwarder %d: lane %d is reported free while the failure of row %d is unsettled", f.id, t.Lane, r.Row.ID)
		}
	}
	for r, told := range f.told {
		if r.Assignment == t && (told.ok && !told.okTaken) {
			f.m.failf("forwarder %d: lane %d is reported free before the settler took the success of row %d", f.id, t.Lane, r.ID)
		}
	}
}

func (f *forwarder) term(lane int16) dispatch.Assignment {
	return dispatch.Assignment{Lane: lane, Epoch: f.coordinator.Lane(lane).Epoch}
}

// reads reports whether an assignment is being read.
func (f *forwarder) reads(t dispatch.Assignment) bool {
	return f.coordinator.Lane(t.Lane) == coordinator.Lane{Epoch: t.Epoch, State: coordinator.Reading}
}

// toLoad returns the acquired lanes whose blocked rows are not loaded. The dispatcher and the cursors only get lanes
// with messages, because there are 64 lanes: the others stay as they are.
func (f *forwarder) toLoad() (list []dispatch.Assignment) {
	for _, n := range f.m.lanes {
		if l := f.coordinator.Lane(n); l.Epoch != 0 && l.State == coordinator.Taken {
			list = append(list, dispatch.Assignment{Lane: n, Epoch: l.Epoch})
		}
	}
	return list
}

// rebalancer makes a step of the goroutine that holds the lease: it reads, changes the lanes, and gets the results.
func (f *forwarder) rebalancer() {
	k := f.keeping
	switch {
	case k == nil:
		f.readMembers()
	case !k.done:
		f.change(k)
	default:
		f.keeping = nil
		k.taken = slices.DeleteFunc(k.taken, func(lease.Assignment) bool {
			return f.m.chance(5) && !f.m.finishing // the reply was lost
		})
		for _, t := range k.taken {
			f.epochs[t.Lane] = t.Epoch
		}
		f.coordinator.Took(k.taken)
		f.take()
	}
}

func (f *forwarder) readMembers() {
	k := &keeping{began: f.m.db.now, unsure: !f.m.db.alive(f.id)}
	f.m.db.heartbeat(f.id, f.coordinator.Stopping())
	if !k.unsure {
		f.renewed(k.began)
	}
	f.giveBack()
	k.members, k.lanes = f.m.db.view(f.id)
	f.sees(k.members)
	f.loadEarly()
	f.keeping = k
}

// sighting records when another member's lease ends, and whether it was renewed since it was first seen.
type sighting struct {
	expires time.Time
	renewed bool
}

// sees records which members may be dead.
func (f *forwarder) sees(members []lease.Member) {
	for i, o := range members {
		if o.ID == strconv.Itoa(f.id) {
			continue
		}
		expires := f.m.db.now.Add(o.Left)
		s, known := f.seen[o.ID]
		if !known {
			s.expires = expires
		}
		s.renewed = s.renewed || !s.expires.Equal(expires)
		f.seen[o.ID], members[i].Silent = s, !s.renewed
	}
}

// renewed records a renewal of the lease. The lease's length changes at the end, and some forwarders have a wrong
// clock.
func (f *forwarder) renewed(began time.Time) {
	if f.m.ignoreLease {
		began = began.Add(farOff)
	}
	f.leaseUntil = began.Add(f.m.db.leases)
	f.coordinator.Renewed(f.leaseUntil.Add(-f.ttl))
	f.take()
}

// giveBack releases free lanes.
func (f *forwarder) giveBack() {
	free := slices.Clone(f.coordinator.Free())
	if f.m.variant.freeAtOnce {
		free = slices.DeleteFunc(f.coordinator.Assignments(), func(t lease.Assignment) bool {
			return f.coordinator.Lane(t.Lane).State != coordinator.Releasing
		})
	}
	if len(free) > 0 {
		f.m.db.giveBack(f.id, free)
		if f.m.chance(5) && !f.m.finishing { // the reply was lost
			return
		}
		f.coordinator.Released(free)
		f.take()
		f.checkReleased(free)
	}
}

// loadEarly loads blocked rows too early, in one of the variants.
func (f *forwarder) loadEarly() {
	if f.m.variant.blockedBeforeTake && f.m.thief != f {
		f.blockedBefore = f.m.allBlocked()
	}
}

func (f *forwarder) change(k *keeping) {
	k.done = true
	p := f.coordinator.MembersRead(k.members, k.lanes, f.short)
	f.take()
	f.short = p.Short
	f.checkPlan(p)
	if k.unsure {
		f.renewed(k.began)
	}
	if lost, back := f.usedTerms(p.Lost), f.usedTerms(p.Release); len(lost)+len(back) > 0 {
		f.logf("loses %v, releases %v", lost, back)
	}
	k.taken = append(f.m.db.retake(f.id, p.Retake, f.epochs), f.m.db.take(f.id, p.Take, f.epochs)...)
	if len(p.Retake)+len(p.Take) > 0 {
		f.logf("retakes or takes %v", f.usedTerms(k.taken))
	}
}

func (f *forwarder) usedTerms(list []lease.Assignment) []lease.Assignment {
	return slices.DeleteFunc(slices.Clone(list), func(t lease.Assignment) bool {
		return !slices.Contains(f.m.lanes, t.Lane)
	})
}
