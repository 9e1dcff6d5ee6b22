package coordinator

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
	Taken     LaneState = iota // its blocked keys are not loaded yet
	Reading                    // dispatcher and cursors have it
	Releasing                  // it will be released once it is free
)

// Lane returns our state of a lane.
func (c *Coordinator) Lane(n int16) Lane { return c.lanes[n] }

// Assignments returns the lanes that are ours.
func (c *Coordinator) Assignments() (all []lanes.Assignment) {
	for n, l := range c.lanes {
		if l.Epoch != 0 {
			all = append(all, lanes.Assignment{Lane: int16(n), Epoch: l.Epoch})
		}
	}
	return all
}

// Free returns the lanes that can be released: nothing of them is in flight or unsettled.
func (c *Coordinator) Free() []lanes.Assignment { return c.free }

// Stopping reports whether Stop was called.
func (c *Coordinator) Stopping() bool { return c.stopping }

// Leased reports whether publishes may start.
func (c *Coordinator) Leased(now time.Time) bool { return now.Before(c.leaseUntil) }

// Owned returns how many lanes are ours to work on, and whether that is less than our share.
func (c *Coordinator) Owned() (owned int, missing bool) {
	for _, l := range c.lanes {
		if l.Epoch != 0 && l.State != Releasing {
			owned++
		}
	}
	return owned, owned < c.share
}

// Renewed allows publishing for a lease period that began with the renewal.
func (c *Coordinator) Renewed(begun time.Time) { c.leaseUntil = begun.Add(c.cfg.LeaseTTL) }

// MembersRead applies the members and lanes read from the database. It forgets the lanes that belong to others, stops
// work on surplus lanes, and returns which lanes to take. short is Plan.Short of the previous call.
func (c *Coordinator) MembersRead(members []lease.Member, list []lease.Lane, short int) lease.Plan {
	v := lease.View{
		Me: c.cfg.Me, TTL: c.cfg.LeaseTTL, Members: members, Lanes: list, Held: make(map[int16]lease.Held, lanes.Count),
		Stopping: c.stopping, Short: short,
	}
	for n, l := range c.lanes {
		if l.Epoch != 0 {
			v.Held[int16(n)] = lease.Held{Epoch: l.Epoch, Releasing: l.State == Releasing}
		}
	}
	p := v.Plan()
	c.share = p.Share
	silent := slices.ContainsFunc(members, func(o lease.Member) bool { return o.Silent })
	if c.memberSilent && !silent && len(c.drains) > 0 {
		c.reads.wanted = true // the next read answers them
		c.effects.Wake |= WakeReader
	}
	c.memberSilent = silent
	c.lose(p.Lost)
	c.release(p.Release)
	return p
}

// Took adds lanes that are now ours in the database. If Stop was called before the answer, the next MembersRead hands
// them back.
func (c *Coordinator) Took(got []lanes.Assignment) {
	for _, t := range got {
		c.lanes[t.Lane] = Lane{Epoch: t.Epoch}
	}
	c.effects.Wake |= WakeReader
}

// Released forgets lanes that are now free in the database.
func (c *Coordinator) Released(list []lanes.Assignment) {
	c.lose(list)
	left := make([]lanes.Assignment, 0, len(c.free)) // the caller of Free has the old one
	for _, t := range c.free {
		if c.lanes[t.Lane].Epoch == t.Epoch {
			left = append(left, t)
		}
	}
	c.free = left
}

// JoinRefused forgets all lanes and forbids publishing: other forwarders must leave before this one may join again. It
// returns those lanes.
func (c *Coordinator) JoinRefused() (list []lanes.Assignment) {
	c.leaseUntil, c.share = time.Time{}, -1
	list = c.Assignments()
	c.lose(list)
	return list
}

// lose forgets assignments that are over or were released.
func (c *Coordinator) lose(list []lanes.Assignment) {
	for _, t := range list {
		if c.lanes[t.Lane].Epoch == t.Epoch {
			c.lanes[t.Lane] = Lane{}
		}
		if _, epoch := c.cursors.At(t.Lane); epoch == t.Epoch {
			c.cursors.Drop(t.Lane)
		}
	}
	c.dispatcher.LanesLost(list...)
}

// release stops work on lanes.
func (c *Coordinator) release(list []lanes.Assignment) {
	for _, t := range list {
		switch l := c.lanes[t.Lane]; {
		case l.Epoch != t.Epoch || l.State == Releasing:
		case l.State == Taken: // the dispatcher does not have it yet
			c.lanes[t.Lane].State = Releasing
			c.free = append(c.free, t)
			c.effects.Wake |= WakeRebalancer
		default:
			c.lanes[t.Lane].State = Releasing
			c.cursors.Drop(t.Lane)
			c.dispatcher.Release(t)
		}
	}
}

// readsShare reports whether all lanes of our share are being read.
func (c *Coordinator) readsShare() bool {
	ours := 0
	for _, l := range c.lanes {
		switch {
		case l.Epoch == 0:
		case l.State != Reading:
			return false
		default:
			ours++
		}
	}
	return c.share >= 0 && ours >= c.share
}
