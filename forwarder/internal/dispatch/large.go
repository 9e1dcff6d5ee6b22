package dispatch

import "slices"

// WantedPayloads returns the useful rows of a read that came without their payload, in the order in which the payloads
// are needed: rows asked for by id, deferred rows, new rows, the oldest first, then due rows. Rows that will not be
// kept in memory need no payload, and leave the room to others: if rows that wait for due rows took it, both would wait
// forever.
func (d *Dispatcher) WantedPayloads(a Request, r *Read) (wanted []*Row) {
	for _, fetch := range a.fetches {
		if f, found := r.ByID[fetch.id]; found && f.Row.Large && !f.Dead {
			wanted = append(wanted, f.Row)
		}
	}
	seen := d.seesAllDue(a, r)
	for i, rows := range [...][]*Row{r.Caught, r.Ready, r.Due} {
		caught, due := i == 0, i == 2
		for _, row := range rows {
			l := d.activeLane(row.Assignment)
			if row.Large && l != nil && d.mayKeep(l, row, caught, due) && (due || !d.willWait(l, row, a, seen)) {
				wanted = append(wanted, row)
			}
		}
	}
	return wanted
}

// willWait reports whether a row, or an earlier one of its key, will still wait for a topic after a read that sees all
// due rows of the lanes seen.
func (d *Dispatcher) willWait(l *lane, r *Row, a Request, seen uint64) bool {
	if w := l.waits[r.Key]; w.covers(l, r.ID) && w.topic.staysClosed(l, a, seen) {
		return true
	}
	t := d.topics[r.Topic]
	return t != nil && t.staysClosed(l, a, seen)
}

// staysClosed reports whether rows of a topic will still wait for it, or for unknown due rows, after such a read.
func (t *topic) staysClosed(l *lane, a Request, seen uint64) bool {
	unseen := t.dueUnseen>>l.assignment.Lane&1 != 0
	return t.closed || unseen && (seen>>l.assignment.Lane&1 == 0 || !slices.Contains(a.reopening, t))
}

// mayKeep reports whether a row will probably be kept in memory: rows that are known, deferred, or wait for another
// attempt will not. If that has changed when the row is accepted, it is deferred, or due rows are looked for again.
// caught means that the read caught up with it, due that it fell due.
func (d *Dispatcher) mayKeep(l *lane, r *Row, caught, due bool) bool {
	t, k := d.topics[r.Topic], l.keys[r.Key]
	switch {
	case l.knows(r.ID), t != nil && t.closed:
		return false
	case r.Key == "":
		return caught || due || t == nil || !t.isDeferred(l, r.ID)
	case r.Attempts > 0, !caught && !due && d.isDeferred(l, r.ID, r.Key, r.Topic):
		return false
	case due:
		return d.keepsDue(l, r)
	}
	return k == nil || !d.defers(k, r.ID) || k.goesBefore(r.ID)
}

// RemoveLarge removes late rows from a read: their payloads were wanted and did not come, because there was no room, or
// because they have changed since. Rows after a late one in its lane are removed as well, because a lane is read in
// order, except rows that block their keys. cut has the id of the first new one.
func (r *Read) RemoveLarge(late map[int64]bool) (cut [Lanes]int64) {
	r.count()
	for id, f := range r.ByID {
		if late[id] && !f.Dead {
			if r.Late == nil {
				r.Late = map[int64]bool{}
			}
			r.Late[id] = true
			delete(r.ByID, id)
		}
	}
	r.Caught, r.CaughtCut = removeLarge(r.Caught, late)
	r.Ready, cut = removeLarge(r.Ready, late)
	var cutDue [Lanes]int64
	r.Due, cutDue = removeLarge(r.Due, late)
	r.DueLate = cutDue != [Lanes]int64{}
	return cut
}

func removeLarge(rows []*Row, late map[int64]bool) (kept []*Row, cut [Lanes]int64) {
	kept = rows[:0]
	for _, row := range rows {
		at := &cut[row.Assignment.Lane]
		if row.Large && late[row.ID] && *at == 0 {
			*at = row.ID
		}
		blocks := row.Key != "" && row.Attempts > 0 // it blocks its key, even without payload
		if blocks || *at == 0 {
			kept = append(kept, row)
		}
	}
	clear(rows[len(kept):])
	return kept, cut
}
