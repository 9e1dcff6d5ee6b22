package board

import "time"

// newHeads takes what an operator had sent again, before other heads of the same keys that were asked for have their
// turn: they may be behind it.
func (b *Board) newHeads(due []*Row) {
	for _, r := range due {
		l := b.open(r.Term)
		// One that was deferred blocks its key as well, or a later one of the same act would go before it. So does one that is
		// under way, or was published, and sent again before that was settled.
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
			b.withdraw(l, known) // or it would be published for the attempt from before, and once more
			b.schedule(l, h, b.now)
			if h.key != nil {
				b.advance(h.key)
			}
		}
		h.act = r.Generation // what is due together comes in order
	}
}

// sentAgain makes a head of a row that an operator had sent again, instead of what waits of it in memory.
func (b *Board) sentAgain(l *lane, r *Row) {
	if known := l.known[r.ID]; known != nil {
		b.withdraw(l, known)
	}
	b.addHead(l, r.Key, r.ID, r.Topic, b.now)
	l.heads[r.ID].act = unknownAct
}

// unknownAct is that of a head of which no read has looked what was sent again with it.
const unknownAct = "?"

// sentAgainSince says whether a message was sent again after a row of it was read: the answer to that one says nothing
// of it, and the message is tried once more.
func (l *lane) sentAgainSince(r *Row) bool {
	h := l.heads[r.ID]
	if h == nil || h.key == nil || h.act == r.Generation {
		return l.known[r.ID].sentAgainAfter(r)
	}
	return true
}

// triesAgain has a message tried that was sent again while a row of it was under way.
func (b *Board) triesAgain(l *lane, r *Row) {
	if h := l.heads[r.ID]; h != nil && h.key != nil && h.place < 0 && l.known[r.ID] == r {
		b.schedule(l, h, b.now)
	}
	if k := l.keys[r.Key]; k != nil {
		b.advance(k)
	}
}

// sentAgainAfter says whether a row was read of a message that an operator had sent again after an earlier row of it.
func (r *Row) sentAgainAfter(earlier *Row) bool {
	return r != nil && r.Generation != earlier.Generation &&
		(r.call.Started.IsZero() || r.call.Started.After(earlier.call.Started))
}

// hasLower says that a key has rows with lower ids than a head: they were committed late, or an operator had the head
// sent again before its turn. Then there may also be some that are deferred, or not read yet.
func (l *lane) hasLower(h *head) bool {
	k, d := h.key, l.waits[h.key.name]
	return k.n > 0 || h.act != "" &&
		(k.low != 0 && k.low < h.id || d.low != 0 && d.low < h.id || l.mark < h.id)
}

// waitForLower has a head wait for them. It looks again, should nothing of its key change until then.
func (b *Board) waitForLower(l *lane, h *head) {
	again := b.now.Add(b.cfg.SlowAfter)
	if l.mark < h.id {
		again = b.now.Add(lookAgain) // a lane that was just taken is soon read
	}
	if d := l.waits[h.key.name]; d.low != 0 && d.low < h.id {
		b.schedule(l, h, again) // it is not late, as it waits for another topic
	} else {
		b.later(l, h, again)
	}
	h.lower = true
}

// endWait has a head go on that waits for rows with lower ids no more.
func (b *Board) endWait(l *lane, h *head) {
	if h.lower && !l.hasLower(h) && h.key.under == nil {
		b.schedule(l, h, b.now)
	}
}

// sawDue notes what a read saw of what fell due, and returns the lanes of which it saw all, but for what Asks.Closed
// leaves out.
func (b *Board) sawDue(a Asks, r Read) (lanes uint64) {
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
	for _, t := range a.looks {
		if !t.closed {
			t.unseen &^= lanes
		}
	}
	return lanes
}

// lookForAct has the next read look for all that fell due, and returns when a head is to be asked for again that may
// have unknown companions. A read that looked, and had too little room, is followed by others.
func (b *Board) lookForAct() time.Time {
	if b.sawTopics {
		return b.now.Add(lookAgain)
	}
	b.wantDue, b.wantTopics = true, true
	return b.now
}
