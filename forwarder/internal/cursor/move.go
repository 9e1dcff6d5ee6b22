package cursor

const (
	// singleSpan is how many ids one range of the primary key covers at rest: the range also contains published rows,
	// each of which costs a lookup.
	singleSpan = 1024
	// sparse is the number of ids per row above which reading by lane, which skips rows that are not for us, is cheaper:
	// there a row costs half as much again.
	sparse = 3
)

// start returns where a lane is read from, given what its answer reports about tracked transactions.
func start(cursor, rewind int64) int64 {
	if rewind >= 0 {
		return min(cursor, rewind)
	}
	return cursor
}

// limit returns how many rows of a lane a read from start may have returned.
func (r *Request) limit(n int, start int64) int64 {
	if start < r.Cursors[n] {
		return r.Limits[n] + r.Rewound[n]
	}
	return r.Limits[n]
}

// trySingle makes the read one of a single range if that is cheaper and all lanes were read up to the same id: at rest,
// when there is little new at a time, and in a backlog that is mostly for us.
func (c *Cursors) trySingle(r *Request) {
	if !r.ranges || !c.resting && !c.dense {
		return
	}
	cursor, limit := int64(-1), int64(0)
	for n, epoch := range r.Epochs {
		switch {
		case epoch == 0:
		case r.Limits[n] == 0 || cursor >= 0 && r.Cursors[n] != cursor:
			return
		default:
			cursor = r.Cursors[n]
			limit += r.Limits[n]
		}
	}
	if cursor < 0 {
		return
	}
	r.Single, r.Span = true, min(r.Span, singleSpan)
	if !c.resting {
		r.Span = max(singleSpan, sparse*limit)
	}
}

// move sets the cursors from an answer. Only lanes count that are still in the assignment for which the request was
// made.
func (c *Cursors) move(r *Request, a *Answer) (p Progress) {
	filled, filledTo := r.filled(a)
	far := int64(0)
	for n := range c.lanes {
		l := &c.lanes[n]
		if l.epoch == 0 || l.epoch != r.Epochs[n] {
			p.More = p.More || l.epoch != 0
			continue
		}
		if !a.Owned[n] {
			*l = lane{}
			continue
		}
		from := start(r.Cursors[n], a.Rewind)
		p.Rewound = p.Rewound || from < r.Cursors[n]
		if r.Limits[n] == 0 {
			l.cursor, p.More = from, true
			continue
		}
		to := a.Last[n]
		if l.full = a.Counts[n] >= r.limit(n, from); r.Single {
			l.full, to = filled, filledTo
		}
		if cut := a.Cut[n]; cut > 0 {
			l.full, to = true, cut-1
		}
		if l.full {
			l.cursor, p.More = to, true // even if that is a step back
			continue
		}
		// Everything visible past the start was returned, as far as the read went. A row up to the sequence's value that was
		// not returned belongs to a tracked transaction, and comes back with it.
		end := max(r.Cursors[n], a.Snapshot.Seq)
		if end-from > r.Span {
			end, p.More, p.Short = from+r.Span, true, true
		}
		l.cursor, far = end, max(far, end-from)
	}
	c.resting = !p.More && far <= singleSpan/2
	c.dense = a.Cut == [Lanes]int64{} && c.isDense(a) // rows that wait for room are no reason to read the others again
	if c.dense && p.More && r.ranges {
		c.align()
	}
	return p
}

// isDense reports whether most of the ids that were read over were rows for us.
func (c *Cursors) isDense(a *Answer) bool {
	last, rows := int64(0), int64(0)
	for n := range a.Counts {
		last, rows = max(last, a.Last[n]), rows+a.Counts[n]
	}
	return rows > 0 && last-min(a.First-1, c.lowest()) <= sparse*rows
}

// lowest returns the lowest cursor.
func (c *Cursors) lowest() int64 {
	lowest := int64(1<<63 - 1)
	for _, l := range c.lanes {
		if l.epoch != 0 {
			lowest = min(lowest, l.cursor)
		}
	}
	return lowest
}

// align makes all lanes continue from the lowest cursor, so that they can be read as a single range. Rows above it that
// were already read are known to the dispatcher, and are read again once.
func (c *Cursors) align() {
	lowest := c.lowest()
	for n := range c.lanes {
		if c.lanes[n].epoch != 0 {
			c.lanes[n].cursor = lowest
		}
	}
}

// filled reports whether a read of a single range hit its limit, and at which id.
func (r *Request) filled(a *Answer) (filled bool, last int64) {
	if !r.Single {
		return false, 0
	}
	var rows, limit int64
	for n, epoch := range r.Epochs {
		if epoch == 0 || !a.Owned[n] {
			continue
		}
		rows, last = rows+a.Counts[n], max(last, a.Last[n])
		limit += r.limit(n, start(r.Cursors[n], a.Rewind))
	}
	return rows >= limit, last
}
