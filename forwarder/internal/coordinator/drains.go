package coordinator

import (
	"slices"
	"time"
)

// drain is a waiting call of Drain.
type drain struct {
	id     int64
	others bool      // see DrainBegins
	until  time.Time // how long it waits for calls that timed out, once all else is done; zero = there were none
}

// Drained is the result of a call of Drain.
type Drained struct {
	ID     int64
	Paused []string // topics that are paused by an operator, with waiting messages
	Closed bool     // the forwarder stops
}

// DrainBegins waits for a read that begins from now on and finds no work left: then Effects.Drained has its id. With
// others it also waits while another member may be dead, whose lanes are ours once its lease has expired. It waits
// Config.CloseTimeout for calls that timed out: the messages behind theirs continue if they succeed.
func (c *Coordinator) DrainBegins(others bool) (id int64) {
	c.drainIDs++
	c.drains = append(c.drains, drain{id: c.drainIDs, others: others})
	c.dispatcher.ReadAllDue() // so a read in flight does not find that no work is left
	if c.stopping {
		c.endDrains(time.Time{}, Drained{Closed: true})
	}
	return c.drainIDs
}

// DrainEnds removes a drain for which nobody waits any more.
func (c *Coordinator) DrainEnds(id int64) {
	c.drains = slices.DeleteFunc(c.drains, func(d drain) bool { return d.id == id })
}

// endDrains ends the waiting calls of Drain: it puts their results into Effects.Drained. It is called once a read has
// found no work left, or with Drained.Closed when the forwarder stops. Unless it stops, a drain that still waits for a
// silent member or for calls that timed out stays for the next read.
func (c *Coordinator) endDrains(now time.Time, with Drained) {
	left := c.drains[:0]
	for _, d := range c.drains {
		if !with.Closed && (d.others && c.memberSilent || c.waitsForHung(now, &d)) {
			left = append(left, d)
			continue
		}
		with.ID = d.id
		c.effects.Drained = append(c.effects.Drained, with)
	}
	c.drains = left
}

// waitsForHung reports whether a drain waits for calls that timed out, once all else is done.
func (c *Coordinator) waitsForHung(now time.Time, d *drain) bool {
	if c.Hung() == 0 {
		return false
	}
	if d.until.IsZero() {
		d.until = now.Add(c.cfg.CloseTimeout)
	}
	return now.Before(d.until)
}

// Health is how long each condition of a forwarder has lasted; 0 = it does not hold.
type Health struct {
	Quiet   time.Duration // there is nothing to do
	Failing time.Duration // no read has worked
	Reading time.Duration // a read is in flight
}

// Health returns the health of the forwarder.
func (c *Coordinator) Health(now time.Time) Health {
	since := func(t time.Time) time.Duration {
		if t.IsZero() {
			return 0
		}
		return max(now.Sub(t), 1)
	}
	return Health{Quiet: since(c.quiet), Failing: since(c.failing), Reading: since(c.reads.inFlightSince)}
}
