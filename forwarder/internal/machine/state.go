package machine

import "time"

// State is the state of a Machine, for people to read. No code decides by it.
type State struct {
	Lanes    []LaneIs      // our lanes, by number
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

// LaneIs is a lane that is ours.
type LaneIs struct {
	Lane
	Number int16
	Mark   int64 // read up to this id; 0 unless it is being read
}

// State collects the state. It takes about as long as handling a message.
func (m *Machine) State(now time.Time) State {
	c := m.board.Counts()
	s := State{
		Share: m.share, Lease: max(0, m.leaseUntil.Sub(now)), Stopping: m.stopping, Health: m.Health(now),
		Rows: c.Rows, Bytes: c.Bytes, Young: c.Young, Slow: c.Slow, Hung: c.Hung, Waiting: c.Waiting, Unsettled: c.Unsettled,
		BlockedKeys: m.board.BlockedKeys(), Closed: m.board.Closed(), Drains: len(m.drains), Lag: m.window.Lag(),
	}
	if m.leaseUntil.IsZero() {
		s.Lease = 0
	}
	for n, l := range m.lanes {
		if l.Epoch == 0 {
			continue
		}
		is := LaneIs{Lane: l, Number: int16(n)}
		if mark, epoch := m.window.Mark(is.Number); epoch == l.Epoch {
			is.Mark = mark
		}
		s.Lanes = append(s.Lanes, is)
	}
	return s
}

// Hung returns how many calls have timed out and not returned.
func (m *Machine) Hung() int { return m.board.Counts().Hung }
