// Package lease decides which lanes a forwarder takes and which it releases, so that all members of a scope have the
// same number of them. It is pure: its input is the state of the database and of memory, its result a plan.
package lease

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Lanes is the number of lanes of a scope.
const Lanes = lanes.Count

const (
	// firstShortfall is when to check again for lanes missing from our share; then it doubles.
	firstShortfall = 50 * time.Millisecond
	// afterExpiry is how long after the expiry of a lease its lanes are checked.
	afterExpiry = 20 * time.Millisecond
)

// Assignment is one period of owning a lane.
type Assignment = lanes.Assignment

// Member is a live forwarder of the scope that should have lanes.
type Member struct {
	ID     string
	Left   time.Duration // of its lease
	Silent bool          // it has not renewed its lease since it was first seen: it may be dead
}

// Lane is a lane as stored in the database.
type Lane struct {
	Assignment
	Owner string // "" = free
	Alive bool   // its owner is running
}

// View is the input of a decision.
type View struct {
	Me       string
	Members  []Member // by ID; our own may be missing
	Lanes    []Lane
	Held     map[int16]Held // lanes in memory
	Stopping bool
	TTL      time.Duration
	Short    int // consecutive plans in which lanes were missing from our share
}

// Held is a lane that is in memory.
type Held struct {
	Epoch     int64
	Releasing bool // it is being released
}

// Plan is what to do, each part in this order.
type Plan struct {
	Lost    []Assignment // no longer ours: forget them
	Release []Assignment // too many: release them once nothing of them is in flight
	Retake  []Assignment // ours, but not in memory: raise their epochs, because work under the old ones is unknown
	Take    []Assignment // free, with the epochs to compare
	Share   int          // how many lanes we should have
	Short   int          // for the next View
	Next    time.Duration
}

// Plan compares the actual state with the desired one.
func (v View) Plan() Plan {
	p := Plan{Share: v.share()}
	var mine, free []Assignment
	for _, l := range v.Lanes {
		held, have := v.Held[l.Lane]
		if have && (l.Owner != v.Me || l.Epoch != held.Epoch) {
			p.Lost = append(p.Lost, Assignment{Lane: l.Lane, Epoch: held.Epoch})
			have = false
		}
		switch {
		case l.Owner != v.Me:
			if !l.Alive {
				free = append(free, l.Assignment)
			}
		case !have && v.Stopping: // a leaving forwarder releases all its lanes
		case !have:
			p.Retake = append(p.Retake, l.Assignment)
		case !held.Releasing:
			mine = append(mine, l.Assignment)
		}
	}
	have := len(mine) + len(p.Retake)
	if surplus := min(max(0, have-p.Share), len(mine)); surplus > 0 {
		p.Release = mine[:surplus]
		have -= surplus
	}
	p.Take = free[:min(max(0, p.Share-have), len(free))]
	p.Next, p.Short = v.next(have+len(p.Take) < p.Share)
	return p
}

// share returns the same number for all members, plus one for the first of them if it does not divide evenly.
func (v View) share() int {
	if v.Stopping {
		return 0 // the others need not wait for work in flight in other lanes
	}
	n := max(len(v.Members), 1)
	share := Lanes / n
	if rank := slices.IndexFunc(v.Members, func(m Member) bool { return m.ID == v.Me }); max(rank, 0) < Lanes%n {
		share++
	}
	return share
}

// next returns when to check again.
func (v View) next(short bool) (time.Duration, int) {
	next := v.TTL / 3
	for _, m := range v.Members {
		if m.ID != v.Me { // check when its lease expires; if it is alive it has renewed it by then
			next = min(next, m.Left+afterExpiry)
		}
	}
	if !short {
		return next, 0
	}
	// Another forwarder is about to release lanes, or has been unable to for long.
	return min(next, firstShortfall<<min(v.Short, 20)), v.Short + 1
}
