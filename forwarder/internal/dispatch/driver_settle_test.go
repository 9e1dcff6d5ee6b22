package dispatch_test

import (
	"slices"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

type settling struct {
	published []*dispatch.Row
	failed    []dispatch.Failure
	committed bool
	outcomes  []string
	locked    []settled
}

// settler makes a step of the settling goroutine: it takes results, commits them, and gets the reply.
func (f *forwarder) settler() {
	s := f.settling
	switch {
	case f.coordinator.Stopping() && !f.m.calm && !f.m.finishing && f.m.chance(5):
		f.giveUp()
	case s == nil && f.m.tight && !f.settle && len(f.left.published)+len(f.left.failed) == 0: // it was not woken
	case s == nil:
		f.beginSettle()
	case !s.committed:
		f.commitSettle(s)
	case f.m.chance(f.m.unknown):
		f.logf("does not get the result of settling")
		f.settling = nil // settled again
	default:
		f.endSettle(s)
	}
}

func (f *forwarder) beginSettle() {
	published, failures := f.results(1 + f.m.rng.IntN(10))
	f.settle = len(published)+len(failures) > 0 // it repeats until no results are left
	f.left.published = append(f.left.published, published...)
	f.left.failed = append(f.left.failed, failures...)
	if len(f.left.published)+len(f.left.failed) == 0 {
		return
	}
	s := &settling{}
	s.published = f.left.published[:f.m.part(len(f.left.published))]
	s.failed = f.left.failed[:f.m.part(len(f.left.failed))]
	f.settling = s
}

// results takes results to settle, and checks that the dispatcher got them.
func (f *forwarder) results(most int) (published []*dispatch.Row, failures []dispatch.Failure) {
	published, failures = f.coordinator.Results(most)
	f.take()
	for _, r := range published {
		t := f.told[r]
		if t == nil || !t.ok || t.okTaken {
			f.m.failf("forwarder %d: the success of row %d is to be settled twice, or was not reported", f.id, r.ID)
			continue
		}
		t.okTaken = true
	}
	for _, r := range failures {
		t := f.told[r.Row]
		if t == nil || !t.failed && !t.unknown || t.failedTaken {
			f.m.failf("forwarder %d: the failure of row %d is to be settled twice, or was not reported", f.id, r.Row.ID)
			continue
		}
		if !t.failed && !f.mayCharge(t.at) {
			f.m.failf("forwarder %d: row %d is charged although five different rows had failed", f.id, r.Row.ID)
		}
		t.failedTaken = true
	}
	return published, failures
}

func (f *forwarder) commitSettle(s *settling) {
	var list []settled
	for _, r := range s.published {
		list = append(list, settled{r.ID, r.UUID, r.Incarnation, r.Generation})
	}
	var problem string
	fails := f.failures(s)
	if f.m.chance(f.m.settleFails) {
		f.logf("fails to settle")
		f.settling = nil
		if f.m.chance(20) { // it timed out: the server goes on
			f.m.db.later = append(f.m.db.later, func() {
				if _, problem := f.m.db.settlePublished(list); problem != "" {
					f.m.failf("forwarder %d: %s", f.id, problem)
				}
				if _, problem := f.m.db.settleFailed(f.id, fails); problem != "" {
					f.m.failf("forwarder %d: %s", f.id, problem)
				}
			})
		}
		return
	}
	s.committed = true
	if s.locked, problem = f.m.db.settlePublished(list); problem != "" {
		f.m.failf("forwarder %d: %s", f.id, problem)
	}
	if s.outcomes, problem = f.m.db.settleFailed(f.id, fails); problem != "" {
		f.m.failf("forwarder %d: %s", f.id, problem)
	}
	f.logf("settles %v, locked %v, and failures %v: %v", rowIDs(s.published), s.locked, failureIDs(s.failed), s.outcomes)
}

func (f *forwarder) failures(s *settling) []failed {
	var fails []failed
	for _, x := range s.failed {
		epoch := x.Row.Assignment.Epoch
		if f.m.variant.rejectedInOtherTerm {
			epoch = f.m.db.lanes[x.Row.Assignment.Lane].epoch
		}
		fails = append(fails, failed{id: x.Row.ID, uuid: x.Row.UUID, life: x.Row.Incarnation, act: x.Row.Generation,
			lane: x.Row.Assignment.Lane, epoch: epoch, attempts: x.Attempts, delay: x.Delay, permanent: x.Permanent})
	}
	return fails
}

func rowIDs(rows []*dispatch.Row) (ids []int64) {
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func failureIDs(list []dispatch.Failure) (ids []int64) {
	for _, x := range list {
		ids = append(ids, x.Row.ID)
	}
	return ids
}

func (f *forwarder) endSettle(s *settling) {
	f.settling = nil
	var done []*dispatch.Row
	var lockedRows []*dispatch.Row
	for _, r := range s.published {
		if slices.ContainsFunc(s.locked, func(l settled) bool { return l.id == r.ID && l.uuid == r.UUID }) {
			lockedRows = append(lockedRows, r)
		} else {
			done = append(done, r)
		}
	}
	var outcomes []dispatch.Outcome
	var lockedFailures []dispatch.Failure
	for i, x := range s.failed {
		o := dispatch.Outcome{Failure: x}
		switch s.outcomes[i] {
		case "waiting":
			o.Kind = dispatch.Waiting
			f.due[x.Row.UUID] = f.m.db.now.Add(x.Delay)
		case "dead":
			o.Kind = dispatch.Dead
		case "gone":
			o.Kind = dispatch.Gone
		case "fenced":
			o.Kind = dispatch.Fenced
		case "locked":
			lockedFailures = append(lockedFailures, x)
			continue
		}
		outcomes = append(outcomes, o)
	}
	for _, r := range done {
		delete(f.unsettled, r)
	}
	for _, x := range s.failed {
		f.told[x.Row].failedAt = f.m.db.tick()
	}
	f.left.published = append(f.left.published[len(s.published):], lockedRows...)
	f.left.failed = append(f.left.failed[len(s.failed):], lockedFailures...)
	f.logf("learns that it settled %v, %v", rowIDs(done), s.outcomes)
	f.coordinator.Settled(f.m.db.now, done, outcomes)
	if f.m.variant.forgetsAtOnce {
		f.dispatcher.ForgetNow()
	}
	f.take()
}

// giveUp ends settling at a stop, before everything is settled.
func (f *forwarder) giveUp() {
	f.logf("gives up settling")
	published, failures := f.results(1 << 30)
	f.settling = nil
	f.coordinator.Unsettled(append(f.left.published, published...), append(f.left.failed, failures...))
	f.left = settling{}
	clear(f.unsettled)
	f.take()
}
