package coordinator

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// State is the state of a Coordinator, for people to read. No code decides by it.
type State struct {
	Lanes    []OwnedLane   // our lanes, by number
	Share    int           // how many lanes we should have, by the last count; -1 before the first
	Lease    time.Duration // how long publishes may still start; 0 = none may
	Stopping bool
	Health
	dispatch.Counts
	BlockedKeys  int
	NotPublished []string // topics that are not published to now
	Drains       int      // waiting calls of Drain
	Lag          int64    // ids that are read again until a long transaction ends
}

// OwnedLane is a lane that is ours.
type OwnedLane struct {
	Lane
	Number int16
}

// State collects the state. It takes about as long as handling a message.
func (c *Coordinator) State(now time.Time) State {
	s := State{
		Share: c.share, Lease: max(0, c.leaseUntil.Sub(now)), Stopping: c.stopping, Health: c.Health(now),
		Counts:      c.dispatcher.Counts(),
		BlockedKeys: c.dispatcher.BlockedKeys(), NotPublished: c.dispatcher.NotPublished(),
		Drains: len(c.drains), Lag: c.cursors.Lag(),
	}
	for n, l := range c.lanes {
		if l.Epoch != 0 {
			s.Lanes = append(s.Lanes, OwnedLane{Lane: l, Number: int16(n)})
		}
	}
	return s
}

// Hung returns how many calls have timed out and not returned.
func (c *Coordinator) Hung() int { return c.dispatcher.Counts().Hung }
