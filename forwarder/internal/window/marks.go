package window

// singleStretch is how many ids one range of the primary key is read over: it also holds what was published, so it
// costs a look at each.
const singleStretch = 1024

// start returns where a lane is read from, given what its answer says about tracked transactions.
func start(mark, rewind int64) int64 {
	if rewind >= 0 {
		return min(mark, rewind)
	}
	return mark
}

// limit returns how many rows of a lane a read from start on may have returned.
func (r *Request) limit(n int, start int64) int64 {
	if start < r.Marks[n] {
		return r.Limits[n] + r.Rewound[n]
	}
	return r.Limits[n]
}

// trySingle makes the read one of a single range where that is the cheaper: at rest, when all lanes were read to the
// same end and not much is new at a time.
func (w *Window) trySingle(r *Request) {
	if !w.resting {
		return
	}
	mark := int64(-1)
	for n, epoch := range r.Epochs {
		switch {
		case epoch == 0:
		case r.Limits[n] == 0 || mark >= 0 && r.Marks[n] != mark:
			return
		default:
			mark = r.Marks[n]
		}
	}
	if mark >= 0 {
		r.Single, r.Stretch, r.wide = true, min(r.Stretch, singleStretch), r.Stretch
	}
}

// move sets the marks as a read answered. Only lanes count that are still in the term that the request was made for.
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
		if l.full {
			l.mark, p.More = to, true // even if that is a step back
			continue
		}
		// Everything visible past the start was returned, as far as the read went. A row up to the sequence's
		// value that was not belongs to a transaction that is tracked, and comes back with it.
		end := max(r.Marks[n], a.Snapshot.Seq)
		if end-from > r.Stretch {
			end, p.More, p.Short = from+r.Stretch, true, true
		}
		l.mark, far = end, max(far, end-from)
	}
	w.resting = !p.More && far <= singleStretch/2
	return p
}

// filled says whether a read of a single range hit its limit, and at which id.
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
