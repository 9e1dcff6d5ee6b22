package board

import "time"

// newHeads makes heads of requeued rows. It runs before the other heads of the same keys that were fetched, because
// requeued rows may have to go first.
func (b *Board) newHeads(due []*Row) {
	for _, r := range due {
		l := b.open(r.Term)
		// A deferred row blocks its key as well, or a later one of the same act would go before it. So does one that is in
		// flight, or that was published and then requeued before that was settled.
		if l != nil && r.Key != "" && r.Attempts > 0 && l.heads[r.ID] == nil {
			if known := l.known[r.ID]; known == nil || known.Generation != r.Generation {
				b.sentAgain(l, r)
			}
		}
		if l == nil || l.heads[r.ID] == nil {
			continue
		}
		h, known := l.heads[r.ID], l.known[r.ID]
		if known != nil && known.Generation != r.Generation && known.call.state == pending {
			b.withdraw(l, known) // or it would be published for the previous attempt, and then again
			b.schedule(l, h, b.now)
			if h.key != nil {
				b.advance(h.key)
			}
		}
		h.act = r.Generation // rows that are due together come in order
	}
}

// sentAgain makes a requeued row a head, in place of its earlier copy in memory.
func (b *Board) sentAgain(l *lane, r *Row) {
	if known := l.known[r.ID]; known != nil {
		b.withdraw(l, known)
	}
	b.addHead(l, r.Key, r.ID, r.Topic, b.now)
	l.heads[r.ID].act = unknownAct
}

// unknownAct is the act of a head for which no read has looked up the rows that were requeued with it.
const unknownAct = "?"

// sentAgainSince reports whether a message was requeued after r was read: the result of r's call then means nothing for
// it, and the message is tried once more.
func (l *lane) sentAgainSince(r *Row) bool {
	h := l.heads[r.ID]
	if h == nil || h.key == nil || h.act == r.Generation {
		return l.known[r.ID].sentAgainAfter(r)
	}
	return true
}

// triesAgain schedules a message that was requeued while an earlier row of it was in flight.
func (b *Board) triesAgain(l *lane, r *Row) {
	if h := l.heads[r.ID]; h != nil && h.key != nil && h.index < 0 && l.known[r.ID] == r {
		b.schedule(l, h, b.now)
	}
	if k := l.keys[r.Key]; k != nil {
		b.advance(k)
	}
}

// sentAgainAfter reports whether a row was read after an operator had requeued the message of an earlier row.
func (r *Row) sentAgainAfter(earlier *Row) bool {
	return r != nil && r.Generation != earlier.Generation &&
		(r.call.Started.IsZero() || r.call.Started.After(earlier.call.Started))
}

// hasLower reports whether a key has rows with lower ids than a head: they were committed late, or an operator requeued
// the head before its turn. Other such rows may then be deferred, or not read yet.
func (l *lane) hasLower(h *head) bool {
	k, d := h.key, l.waits[h.key.name]
	return k.n > 0 || h.act != "" &&
		(k.low != 0 && k.low < h.id || d.low != 0 && d.low < h.id || l.mark < h.id)
}

// waitForLower makes a head wait for them. It checks again later, in case nothing of its key changes.
func (b *Board) waitForLower(l *lane, h *head) {
	again := b.now.Add(b.cfg.SlowAfter)
	if l.mark < h.id {
		again = b.now.Add(recheckAfter) // a newly taken lane is read soon
	}
	if d := l.waits[h.key.name]; d.low != 0 && d.low < h.id {
		b.schedule(l, h, again) // it is not late, because it waits for another topic
	} else {
		b.later(l, h, again)
	}
	h.behindRows = true
}

// endWait lets a head continue once it no longer waits for rows with lower ids.
func (b *Board) endWait(l *lane, h *head) {
	if h.behindRows && !l.hasLower(h) && h.key.inFlight == nil {
		b.schedule(l, h, b.now)
	}
}

// sawDue records what a read saw of the due rows, and returns the lanes of which it saw all due rows, except those that
// Request.Closed excludes.
func (b *Board) sawDue(a Request, r Read) (lanes uint64) {
	b.sawTopics = r.DueRead && len(a.Closed) == 0
	b.wantTopics = b.wantTopics && !b.sawTopics
	if !r.DueRead {
		return 0
	}
	r.count()
	for n, limit := range a.Due {
		if r.fellDue[n] < limit || limit >= int64(b.mostAgain()) { // it cannot see more
			lanes |= 1 << n
		}
	}
	for _, t := range a.reopening {
		if !t.closed {
			t.unseen &^= lanes
		}
	}
	return lanes
}

// readDueForAct makes the next read look for all due rows, and returns when to ask again for a head that may have
// unknown companions. A read that looked but had too little room is followed by others.
func (b *Board) readDueForAct() time.Time {
	if b.sawTopics {
		return b.now.Add(recheckAfter)
	}
	b.wantDue, b.wantTopics = true, true
	return b.now
}
