// Package lease decides which lanes a forwarder takes and which it gives back, so that all members of a scope have
// the same number of them. It is pure: it sees what the database says and what is in memory, and returns a plan.
package lease

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lanes"
)

// Lanes is how many lanes a scope has.
const Lanes = lanes.Count

const (
	// firstShortfall is when to look again for lanes that are ours to have; then it doubles.
	firstShortfall = 50 * time.Millisecond
	// afterExpiry is how long after a lease has expired its lanes are looked for.
	afterExpiry = 20 * time.Millisecond
)

// Term is one time of owning a lane.
type Term = lanes.Term

// Member is a live forwarder of the scope that is to have lanes.
type Member struct {
	ID     string
	Left   time.Duration // of its lease
	Silent bool          // it has not renewed its lease since it was seen first: it may be dead
}

// Lane is a lane as the database has it.
type Lane struct {
	Term
	Owner string // "" = none
	Alive bool   // so is its owner
}

// View is what there is to decide on.
type View struct {
	Me       string
	Members  []Member // by ID; the one that is me may be missing
	Lanes    []Lane
	Held     map[int16]Held // what of it is in memory
	Stopping bool
	TTL      time.Duration
	Short    int // how many plans in a row found lanes missing to our share
}

// Held is a lane that is in memory.
type Held struct {
	Epoch   int64
	Handing bool // it is to be given back
}

// Plan is what to do, each part in this order.
type Plan struct {
	Lost     []Term // no longer ours: forget them
	HandBack []Term // too many: give them back once nothing of them is under way
	Retake   []Term // ours, but not in memory: raise their epochs, as it is unknown what was done under these
	Take     []Term // free, with the epochs to compare
	Share    int    // how many lanes are ours to have
	Short    int    // for the next View
	Next     time.Duration
}

// Plan compares what is with what should be.
func (v View) Plan() Plan {
	p := Plan{Share: v.share()}
	var mine, free []Term
	for _, l := range v.Lanes {
		held, have := v.Held[l.Lane]
		if have && (l.Owner != v.Me || l.Epoch != held.Epoch) {
			p.Lost = append(p.Lost, Term{Lane: l.Lane, Epoch: held.Epoch})
			have = false
		}
		switch {
		case l.Owner != v.Me:
			if !l.Alive {
				free = append(free, l.Term)
			}
		case !have && v.Stopping: // one that leaves gives back all its lanes
		case !have:
			p.Retake = append(p.Retake, l.Term)
		case !held.Handing:
			mine = append(mine, l.Term)
		}
	}
	have := len(mine) + len(p.Retake)
	if surplus := min(max(0, have-p.Share), len(mine)); surplus > 0 {
		p.HandBack = mine[:surplus]
		have -= surplus
	}
	p.Take = free[:min(max(0, p.Share-have), len(free))]
	p.Next, p.Short = v.next(have+len(p.Take) < p.Share)
	return p
}

// share is the same number for all members, and one more for the first of them if that does not come out even.
func (v View) share() int {
	if v.Stopping {
		return 0 // the others need not wait for what is still under way in other lanes
	}
	n := max(len(v.Members), 1)
	share := Lanes / n
	if rank := slices.IndexFunc(v.Members, func(m Member) bool { return m.ID == v.Me }); max(rank, 0) < Lanes%n {
		share++
	}
	return share
}

// next says when to look again.
func (v View) next(short bool) (time.Duration, int) {
	next := v.TTL / 3
	for _, m := range v.Members {
		if m.ID != v.Me { // be there when its lease runs out; if it is alive it has renewed it by then
			next = min(next, m.Left+afterExpiry)
		}
	}
	if !short {
		return next, 0
	}
	// A forwarder is about to give lanes back, or cannot for long.
	return min(next, firstShortfall<<min(v.Short, 20)), v.Short + 1
}
