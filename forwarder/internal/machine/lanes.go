package machine

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

// Lane is a lane that is ours in the database. The zero value is a lane that is not ours.
type Lane struct {
	Epoch int64
	State LaneState
}

// LaneState is the state of a lane that is ours.
type LaneState uint8

const (
	Taken   LaneState = iota // its blocked keys are not loaded yet
	Reading                  // board and window have it
	Handing                  // it will be released once it is free
)

// Lane returns our state of a lane.
func (m *Machine) Lane(n int16) Lane { return m.lanes[n] }

// All returns the lanes that are ours.
func (m *Machine) All() (all []lanes.Term) {
	for n, l := range m.lanes {
		if l.Epoch != 0 {
			all = append(all, lanes.Term{Lane: int16(n), Epoch: l.Epoch})
		}
	}
	return all
}

// Free returns the lanes that can be released: nothing of them is in flight or unsettled.
func (m *Machine) Free() []lanes.Term { return m.free }

// Stopping reports whether Stop was called.
func (m *Machine) Stopping() bool { return m.stopping }

// Leased reports whether publishes may start.
func (m *Machine) Leased(now time.Time) bool { return now.Before(m.leaseUntil) }

// Owned returns how many lanes are ours to work on, and whether that is less than our share.
func (m *Machine) Owned() (owned int, missing bool) {
	for _, l := range m.lanes {
		if l.Epoch != 0 && l.State != Handing {
			owned++
		}
	}
	return owned, owned < m.share
}

// Renewed allows publishing for a lease period that began with the renewal.
func (m *Machine) Renewed(begun time.Time) { m.leaseUntil = begun.Add(m.cfg.LeaseTTL) }

// Viewed applies the members and lanes read from the database. It forgets the lanes that belong to others, stops work
// on surplus lanes, and returns which lanes to take. short is Plan.Short of the previous call.
func (m *Machine) Viewed(members []lease.Member, list []lease.Lane, short int) lease.Plan {
	v := lease.View{
		Me: m.cfg.Me, TTL: m.cfg.LeaseTTL, Members: members, Lanes: list, Held: make(map[int16]lease.Held, lanes.Count),
		Stopping: m.stopping, Short: short,
	}
	for n, l := range m.lanes {
		if l.Epoch != 0 {
			v.Held[int16(n)] = lease.Held{Epoch: l.Epoch, Handing: l.State == Handing}
		}
	}
	p := v.Plan()
	m.share = p.Share
	silent := slices.ContainsFunc(members, func(o lease.Member) bool { return o.Silent })
	if m.silent && !silent && len(m.drains) > 0 {
		m.reads.asked = true // the next read answers them
		m.effects.Wake |= WakeReader
	}
	m.silent = silent
	m.lose(p.Lost)
	m.handBack(p.HandBack)
	return p
}

// Took adds lanes that are now ours in the database. If Stop was called before the answer, the next Viewed hands them
// back.
func (m *Machine) Took(got []lanes.Term) {
	for _, t := range got {
		m.lanes[t.Lane] = Lane{Epoch: t.Epoch}
	}
	m.effects.Wake |= WakeReader
}

// Released forgets lanes that are now free in the database.
func (m *Machine) Released(list []lanes.Term) {
	m.lose(list)
	left := make([]lanes.Term, 0, len(m.free)) // the caller of Free has the old one
	for _, t := range m.free {
		if m.lanes[t.Lane].Epoch == t.Epoch {
			left = append(left, t)
		}
	}
	m.free = left
}

// SteppedAside forgets all lanes, because others must leave first, and forbids publishing. It returns those lanes.
func (m *Machine) SteppedAside() (list []lanes.Term) {
	m.leaseUntil, m.share = time.Time{}, -1
	list = m.All()
	m.lose(list)
	return list
}

// lose forgets terms that are over or were released.
func (m *Machine) lose(list []lanes.Term) {
	for _, t := range list {
		if m.lanes[t.Lane].Epoch == t.Epoch {
			m.lanes[t.Lane] = Lane{}
		}
		if _, epoch := m.window.Mark(t.Lane); epoch == t.Epoch {
			m.window.Drop(t.Lane)
		}
	}
	m.board.LanesLost(list...)
}

// handBack stops work on lanes.
func (m *Machine) handBack(list []lanes.Term) {
	for _, t := range list {
		switch l := m.lanes[t.Lane]; {
		case l.Epoch != t.Epoch || l.State == Handing:
		case l.State == Taken: // the board does not have it yet
			m.lanes[t.Lane].State = Handing
			m.free = append(m.free, t)
			m.effects.Wake |= WakeKeeper
		default:
			m.lanes[t.Lane].State = Handing
			m.window.Drop(t.Lane)
			m.board.HandBack(t)
		}
	}
}

// complete reports whether all lanes of our share are being read.
func (m *Machine) complete() bool {
	ours := 0
	for _, l := range m.lanes {
		switch {
		case l.Epoch == 0:
		case l.State != Reading:
			return false
		default:
			ours++
		}
	}
	return m.share >= 0 && ours >= m.share
}
