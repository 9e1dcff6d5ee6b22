package board

// Counts are the board's counters.
type Counts struct {
	Rows               int // in memory, including those in flight
	Bytes              int64
	Young, Slow, Hung  int // calls in flight; Slow includes the expired
	Waiting, Unsettled int // keys that wait for topics; results
}

// Counts returns the current counters.
func (b *Board) Counts() Counts {
	c := Counts{Rows: b.rows, Bytes: b.bytes, Young: b.young.n, Waiting: b.waiting, Unsettled: b.unsettled}
	for _, t := range b.topics {
		c.Hung += t.hung
		c.Slow += t.old - t.hung
	}
	return c
}

// BlockedKeys returns the number of messages that block their keys because they wait for another attempt or are dead.
func (b *Board) BlockedKeys() (n int) {
	for _, l := range b.lanes {
		if l != nil {
			n += len(l.heads)
		}
	}
	return n - b.keyless
}

// Closed returns the topics that are not published to now: paused, paused by an operator, slow or jammed.
func (b *Board) Closed() (names []string) {
	for _, t := range b.degraded {
		if t.closed {
			names = append(names, t.name)
		}
	}
	return names
}
