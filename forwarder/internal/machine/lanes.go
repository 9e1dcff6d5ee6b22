package machine

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

// Lane is a lane that is ours in the database. Its zero value is one that is not.
type Lane struct {
	Epoch int64
	State LaneState
}

// LaneState is how far a lane that is ours has come.
type LaneState uint8

const (
	Taken   LaneState = iota // its blocked keys are not loaded yet
	Reading                  // board and window have it
	Handing                  // it is to be given back once it is free
)

// Lane looks what a lane is to us.
func (m *Machine) Lane(n int16) Lane { return m.lanes[n] }

// All looks which lanes are ours.
func (m *Machine) All() (all []lanes.Term) {
	for n, l := range m.lanes {
		if l.Epoch != 0 {
			all = append(all, lanes.Term{Lane: int16(n), Epoch: l.Epoch})
		}
	}
	return all
}

// Free looks which lanes can be given back: nothing of them is under way or unsettled.
func (m *Machine) Free() []lanes.Term { return m.free }

// Stopping looks whether Stop was called.
func (m *Machine) Stopping() bool { return m.stopping }

// Leased looks whether publishes may start.
func (m *Machine) Leased(now time.Time) bool { return now.Before(m.leaseUntil) }

// Owned looks how many lanes are ours to work on, and whether that is less than our share.
func (m *Machine) Owned() (owned int, missing bool) {
	for _, l := range m.lanes {
		if l.Epoch != 0 && l.State != Handing {
			owned++
		}
	}
	return owned, owned < m.share
}

// Renewed allows publishing for a lease time after its renewal began.
func (m *Machine) Renewed(begun time.Time) { m.leaseUntil = begun.Add(m.cfg.LeaseTTL) }

// Viewed takes what the database says of members and lanes. It forgets the lanes that are another's, stops work on
// those that are too many, and says what to take. short is Plan.Short of the Viewed before.
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
		m.reads.asked = true // it answers them
		m.effects.Wake |= WakeReader
	}
	m.silent = silent
	m.lose(p.Lost)
	m.handBack(p.HandBack)
	return p
}

// Took takes lanes that are ours in the database from now on. If a Stop came before the answer, the next Viewed hands
// them back.
func (m *Machine) Took(got []lanes.Term) {
	for _, t := range got {
		m.lanes[t.Lane] = Lane{Epoch: t.Epoch}
	}
	m.effects.Wake |= WakeReader
}

// Released forgets lanes that are nobody's in the database from now on.
func (m *Machine) Released(list []lanes.Term) {
	m.lose(list)
	left := make([]lanes.Term, 0, len(m.free)) // who asked for Free has the old one
	for _, t := range m.free {
		if m.lanes[t.Lane].Epoch == t.Epoch {
			left = append(left, t)
		}
	}
	m.free = left
}

// SteppedAside forgets all lanes, as others must leave first, and forbids publishing. It says which they were.
func (m *Machine) SteppedAside() (list []lanes.Term) {
	m.leaseUntil, m.share = time.Time{}, -1
	list = m.All()
	m.lose(list)
	return list
}

// lose forgets terms that are over, or were given back.
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
		case l.State == Taken: // the board has never heard of it
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

// complete says whether all lanes that are ours to have are being read.
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
