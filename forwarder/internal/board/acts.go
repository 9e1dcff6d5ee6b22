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
}

// sentAgainAfter says whether a row was read of a message that an operator had sent again after an earlier row of it.
func (r *Row) sentAgainAfter(earlier *Row) bool {
	return r != nil && r.Generation != earlier.Generation &&
		(r.call.Started.IsZero() || r.call.Started.After(earlier.call.Started))
}

// sawDue returns the lanes of which a read saw all that fell due: it left out no topic, and no row for want of room.
func (b *Board) sawDue(a Asks, r Read) (lanes uint64) {
	b.sawTopics = r.DueRead && len(a.Closed) == 0
	if b.wantTopics = b.wantTopics && !b.sawTopics; !b.sawTopics || r.DueLate {
		return 0
	}
	var counts [Lanes]int64
	for _, row := range r.Due {
		counts[row.Term.Lane]++
	}
	for n, limit := range a.Due {
		if counts[n] < limit {
			lanes |= 1 << n
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
