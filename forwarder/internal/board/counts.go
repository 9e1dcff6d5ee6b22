package board

// Counts is what the board's counters say.
type Counts struct {
	Rows               int // in memory, with those under way
	Bytes              int64
	Young, Slow, Hung  int // calls under way; Slow with the expired
	Waiting, Unsettled int // keys that wait for topics; results
}

// Counts looks how much of everything there is.
func (b *Board) Counts() Counts {
	c := Counts{Rows: b.rows, Bytes: b.bytes, Young: b.young.n, Waiting: b.waiting, Unsettled: b.unsettled}
	for _, t := range b.topics {
		c.Hung += t.hung
		c.Slow += t.old - t.hung
	}
	return c
}

// BlockedKeys looks how many messages wait for another attempt, or are dead, and block their keys.
func (b *Board) BlockedKeys() (n int) {
	for _, l := range b.lanes {
		if l != nil {
			n += len(l.heads)
		}
	}
	return n - b.loose
}

// Closed looks which topics are not published to now: paused, paused by an operator, slow or jammed.
func (b *Board) Closed() (names []string) {
	for _, t := range b.troubled {
		if t.closed {
			names = append(names, t.name)
		}
	}
	return names
}
