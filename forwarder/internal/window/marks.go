package window

const (
	// singleStretch is how many ids one range of the primary key covers at rest: the range also contains published rows,
	// each of which costs a lookup.
	singleStretch = 1024
	// sparse is the number of ids per row above which reading by lane, which skips rows that are not for us, is cheaper:
	// there a row costs half as much again.
	sparse = 3
)

// start returns where a lane is read from, given what its answer reports about tracked transactions.
func start(mark, rewind int64) int64 {
	if rewind >= 0 {
		return min(mark, rewind)
	}
	return mark
}

// limit returns how many rows of a lane a read from start may have returned.
func (r *Request) limit(n int, start int64) int64 {
	if start < r.Marks[n] {
		return r.Limits[n] + r.Rewound[n]
	}
	return r.Limits[n]
}

// trySingle makes the read one of a single range if that is cheaper and all lanes were read up to the same id: at rest,
// when there is little new at a time, and in a backlog that is mostly for us.
func (w *Window) trySingle(r *Request) {
	if !r.ranges || !w.resting && !w.dense {
		return
	}
	mark, limit := int64(-1), int64(0)
	for n, epoch := range r.Epochs {
		switch {
		case epoch == 0:
		case r.Limits[n] == 0 || mark >= 0 && r.Marks[n] != mark:
			return
		default:
			mark = r.Marks[n]
			limit += r.Limits[n]
		}
	}
	if mark < 0 {
		return
	}
	r.Single, r.Stretch = true, min(r.Stretch, singleStretch)
	if !w.resting {
		r.Stretch = max(singleStretch, sparse*limit)
	}
}

// move sets the cursors from an answer. Only lanes count that are still in the term for which the request was made.
func (w *Window) move(r *Request, a *Answer) (p Progress) {
	filled, filledTo := r.filled(a)
	far := int64(0)
	for n := range w.lanes {
		l := &w.lanes[n]
		if l.epoch == 0 || l.epoch != r.Epochs[n] {
			p.More = p.More || l.epoch != 0
			continue
		}
		if !a.Owned[n] {
			*l = lane{}
			continue
		}
		from := start(r.Marks[n], a.Rewind)
		p.Rewound = p.Rewound || from < r.Marks[n]
		if r.Limits[n] == 0 {
			l.mark, p.More = from, true
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
			l.mark, p.More = to, true // even if that is a step back
			continue
		}
		// Everything visible past the start was returned, as far as the read went. A row up to the sequence's value that was
		// not returned belongs to a tracked transaction, and comes back with it.
		end := max(r.Marks[n], a.Snapshot.Seq)
		if end-from > r.Stretch {
			end, p.More, p.Short = from+r.Stretch, true, true
		}
		l.mark, far = end, max(far, end-from)
	}
	w.resting = !p.More && far <= singleStretch/2
	w.dense = a.Cut == [Lanes]int64{} && w.isDense(a) // rows that wait for room are no reason to read the others again
	if w.dense && p.More && r.ranges {
		w.align()
	}
	return p
}

// isDense reports whether most of the ids that were read over were rows for us.
func (w *Window) isDense(a *Answer) bool {
	last, rows := int64(0), int64(0)
	for n := range a.Counts {
		last, rows = max(last, a.Last[n]), rows+a.Counts[n]
	}
	return rows > 0 && last-min(a.First-1, w.lowest()) <= sparse*rows
}

// lowest returns the lowest cursor.
func (w *Window) lowest() int64 {
	lowest := int64(1<<63 - 1)
	for _, l := range w.lanes {
		if l.epoch != 0 {
			lowest = min(lowest, l.mark)
		}
	}
	return lowest
}

// align makes all lanes continue from the lowest cursor, so that they can be read as a single range. Rows above it that
// were already read are known to the board, and are read again once.
func (w *Window) align() {
	lowest := w.lowest()
	for n := range w.lanes {
		if w.lanes[n].epoch != 0 {
			w.lanes[n].mark = lowest
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
		limit += r.limit(n, start(r.Marks[n], a.Rewind))
	}
	return rows >= limit, last
}
