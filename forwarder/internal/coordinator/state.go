package coordinator

import "time"

// State is the state of a Coordinator, for people to read. No code decides by it.
type State struct {
	Lanes    []OwnedLane   // our lanes, by number
	Share    int           // how many lanes we should have, by the last count; -1 before the first
	Lease    time.Duration // how long publishes may still start; 0 = none may
	Stopping bool
	Health   Health

	Rows               int // in memory, including those in flight
	Bytes              int64
	Young, Slow, Hung  int // calls in flight
	Waiting, Unsettled int // keys that wait for topics; results
	BlockedKeys        int
	Closed             []string // topics that are not published to now
	Drains             int      // waiting calls of Drain
	Lag                int64    // ids that are read again until a long transaction ends
}

// OwnedLane is a lane that is ours.
type OwnedLane struct {
	Lane
	Number int16
	Cursor int64 // read up to this id; 0 unless it is being read
}

// State collects the state. It takes about as long as handling a message.
func (c *Coordinator) State(now time.Time) State {
	counts := c.dispatcher.Counts()
	s := State{
		Share: c.share, Lease: max(0, c.leaseUntil.Sub(now)), Stopping: c.stopping, Health: c.Health(now),
		Rows: counts.Rows, Bytes: counts.Bytes, Young: counts.Young, Slow: counts.Slow, Hung: counts.Hung,
		Waiting: counts.Waiting, Unsettled: counts.Unsettled,
		BlockedKeys: c.dispatcher.BlockedKeys(), Closed: c.dispatcher.Closed(), Drains: len(c.drains), Lag: c.cursors.Lag(),
	}
	if c.leaseUntil.IsZero() {
		s.Lease = 0
	}
	for n, l := range c.lanes {
		if l.Epoch == 0 {
			continue
		}
		is := OwnedLane{Lane: l, Number: int16(n)}
		if cursor, epoch := c.cursors.At(is.Number); epoch == l.Epoch {
			is.Cursor = cursor
		}
		s.Lanes = append(s.Lanes, is)
	}
	return s
}

// Hung returns how many calls have timed out and not returned.
func (c *Coordinator) Hung() int { return c.dispatcher.Counts().Hung }
