package board

// Wanted returns the rows of a read that came without their payload and are of use, in the order in which they are
// wanted: those that were asked for by id, what was deferred, the new ones, the oldest first, then what fell due. What does not come
// into memory needs no payload, and leaves the room to others.
func (b *Board) Wanted(a Asks, r *Read) (wanted []*Row) {
	for _, ask := range a.asks {
		if f, found := r.ByID[ask.id]; found && f.Row.Large && !f.Dead {
			wanted = append(wanted, f.Row)
		}
	}
	for i, rows := range [...][]*Row{r.Caught, r.Ready, r.Due} {
		for _, row := range rows {
			if l := b.open(row.Term); row.Large && l != nil && b.mayKeep(l, row, i == 0, i == 2) {
				wanted = append(wanted, row)
			}
		}
	}
	return wanted
}

// mayKeep says whether a row that was read comes into memory, as it seems: what is known or deferred, or waits for
// another attempt, does not. If that has changed when the row is accepted, it is deferred, or what fell due looked for
// again. caught says that the read has caught up with it, due that it fell due.
func (b *Board) mayKeep(l *lane, r *Row, caught, due bool) bool {
	t, k := b.topics[r.Topic], l.keys[r.Key]
	switch {
	case l.knows(r.ID), t != nil && t.closed:
		return false
	case r.Key == "":
		return caught || due || t == nil || !t.isDeferred(l, r.ID)
	case r.Attempts > 0, !caught && !due && b.isDeferred(l, r.ID, r.Key, r.Topic):
		return false
	case due:
		return b.keepsDue(l, r.Key)
	}
	return k == nil || !b.defers(k, r.ID) || k.joinsBefore(r.ID)
}

// Leave takes rows out of a read that have no payload: those that there was no room for, late, and those that are gone.
// What follows a late one in its lane is taken out with it, since a lane is read in order, but for rows that block their
// keys: cut has the id of the first new one.
func (r *Read) Leave(late, gone map[int64]bool) (cut [Lanes]int64) {
	r.count()
	for id, f := range r.ByID {
		switch {
		case f.Dead:
		case late[id]:
			if r.Late == nil {
				r.Late = map[int64]bool{}
			}
			r.Late[id] = true
			delete(r.ByID, id)
		case gone[id]:
			delete(r.ByID, id)
		}
	}
	r.Caught, r.CaughtCut = leave(r.Caught, late, gone)
	r.Ready, cut = leave(r.Ready, late, gone)
	var cutDue [Lanes]int64
	r.Due, cutDue = leave(r.Due, late, gone)
	r.DueLate = cutDue != [Lanes]int64{}
	return cut
}

func leave(rows []*Row, late, gone map[int64]bool) (kept []*Row, cut [Lanes]int64) {
	kept = rows[:0]
	for _, row := range rows {
		at := &cut[row.Term.Lane]
		if row.Large && late[row.ID] && *at == 0 {
			*at = row.ID
		}
		blocks := row.Key != "" && row.Attempts > 0 // its key, also without payload
		if blocks || *at == 0 && !(row.Large && gone[row.ID]) {
			kept = append(kept, row)
		}
	}
	clear(rows[len(kept):])
	return kept, cut
}
