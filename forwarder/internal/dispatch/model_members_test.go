package dispatch_test

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// members lets forwarders join and leave.
func (m *model) members() {
	f := m.forwarders[m.rng.IntN(len(m.forwarders))]
	switch p := m.rng.IntN(100); {
	case len(m.forwarders) < 3 && p < 30:
		m.start()
	case p < 50:
		if !f.coordinator.Stopping() {
			f.stop()
		}
	case p < 70 && m.kills:
		m.logf("forwarder %d is killed", f.id)
		m.remove(f)
	case m.kills:
		f.frozen = m.db.now.Add(time.Duration(m.rng.IntN(20)) * time.Millisecond)
		m.logf("forwarder %d freezes until %v", f.id, f.frozen.Sub(time.Unix(1e9, 0)))
	}
}

// steal makes a forwarder acquire a lane without its owner's notice, as when the owner's lease expires; or acquire its
// own lane again after another forwarder had it. It reads first, and acquires in another step. That is most useful when
// a failure in the lane is being settled, or is about to be.
func (m *model) steal() {
	if m.db.now.Before(m.stealAfter) {
		return
	}
	if m.thief == nil {
		f := m.forwarders[m.rng.IntN(len(m.forwarders))]
		f.loadEarly()
		m.thief, m.readAt, m.afterFailure = f, m.db.tick(), m.chance(50)
		return
	}
	f, row, of := m.thief, (*dispatch.Row)(nil), (*forwarder)(nil)
	for _, o := range m.forwarders {
		r := o.lastFailed
		if r == nil || r.Key == "" || m.chance(30) {
			continue
		}
		if at := o.told[r].failedAt; !m.afterFailure && at == 0 || m.afterFailure && at > m.readAt {
			row, of = r, o
		}
	}
	if row == nil && m.chance(96) {
		return // perhaps later
	}
	m.thief, m.stealAfter = nil, m.db.now.Add(m.patience*2*time.Millisecond)
	if f.coordinator.Stopping() || !slices.Contains(m.forwarders, f) {
		return
	}
	n := m.lanes[m.rng.IntN(len(m.lanes))]
	if row != nil {
		n = row.Assignment.Lane
	}
	if had := f.term(n); had.Epoch != 0 {
		f.coordinator.Released([]dispatch.Assignment{had})
	}
	epoch := max(m.db.lanes[n].epoch, f.epochs[n]) + 1 + m.rng.Int64N(2)
	m.db.changeLane(n, laneRow{f.id, epoch})
	f.epochs[n] = epoch
	if k := f.keeping; k != nil { // it uses its latest information about this lane
		k.taken = slices.DeleteFunc(k.taken, func(t dispatch.Assignment) bool { return t.Lane == n })
	}
	f.coordinator.Took([]dispatch.Assignment{{Lane: n, Epoch: epoch}})
	f.take()
	m.logf("forwarder %d takes lane %d with epoch %d", f.id, n, epoch)
	if row != nil && !m.afterFailure {
		// The forwarder with the failure freezes until the new owner has loaded the blocked rows, and the new owner does not
		// read before the failure.
		until := m.db.now.Add(10 * time.Millisecond)
		if of != f {
			of.frozenWhile = func() bool {
				return f.coordinator.Lane(n) == coordinator.Lane{Epoch: epoch, State: coordinator.Taken}
			}
		}
		f.noReadWhile = func() bool {
			return f.dispatcher.Owns(f.term(n)) && of.told[row].failedAt == 0 && m.db.now.Before(until)
		}
	}
}

func (m *model) start() {
	f := newForwarder(m)
	m.forwarders = append(m.forwarders, f)
	m.logf("forwarder %d starts", f.id)
}

func (m *model) remove(f *forwarder) {
	m.forwarders = slices.DeleteFunc(m.forwarders, func(o *forwarder) bool { return o == f })
	if len(m.forwarders) == 0 {
		m.start()
	}
}
