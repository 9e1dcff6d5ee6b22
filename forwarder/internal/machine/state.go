package machine

import "time"

// State is what a Machine knows, for people to read. Nothing decides by it.
type State struct {
	Lanes    []LaneIs      // those that are ours, by their number
	Share    int           // how many are ours to have, by the last count; -1 before the first
	Lease    time.Duration // publishes may start for so long; 0 = none may
	Stopping bool
	Mood     Mood

	Rows               int // in memory, with those under way
	Bytes              int64
	Young, Slow, Hung  int // calls under way
	Waiting, Unsettled int // keys that wait for topics; results
	BlockedKeys        int
	Closed             []string // topics that are not published to now
	Drains             int      // calls of Drain that wait
	Lag                int64    // ids that are read again until a long transaction ends
}

// LaneIs is a lane that is ours.
type LaneIs struct {
	Lane
	Number int16
	Mark   int64 // read up to this id; 0 unless it is being read
}

// State looks at everything. It takes about as long as a message.
func (m *Machine) State(now time.Time) State {
	c := m.board.Counts()
	s := State{
		Share: m.share, Lease: max(0, m.leaseUntil.Sub(now)), Stopping: m.stopping, Mood: m.Mood(now),
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

// Hung looks how many calls have timed out and not returned.
func (m *Machine) Hung() int { return m.board.Counts().Hung }
