package board

// keep brings a row into memory.
func (b *Board) keep(l *lane, r *Row) {
	c := &r.call
	c.Row, c.Attempt, c.topic = r, r.Attempts+1, b.topicOf(r.Topic)
	c.Again = c.Again || r.Attempts > 0
	l.known[r.ID] = r
	l.top = max(l.top, r.ID)
	l.moves(r, 1)
	b.rows++
	b.bytes += r.size()
}

// moves counts a row that comes into memory, or one that leaves it or is under way from now on.
func (l *lane) moves(r *Row, n int) {
	t, size := r.call.topic, int64(n)*r.size()
	l.rows += n
	l.bytes += size
	t.rows += n
	t.bytes += size
}

// drop takes a row out of memory that waited there.
func (b *Board) drop(l *lane, r *Row) {
	if r.call.state == pending {
		b.unqueue(&r.call)
	}
	r.call.state = dropped
	delete(l.known, r.ID)
	l.moves(r, -1)
	b.update(r.call.topic)
	b.rows--
	b.bytes -= r.size()
}

func (r *Row) size() int64 { return int64(len(r.Payload) + len(r.Metadata)) }

// accept takes a row that was read for the first time, or again: into memory, in its place in its key's chain, to be
// parked, or not at all. due says that it was read because it fell due: then nothing waits for it, and the lane need
// not be read again for it.
func (b *Board) accept(l *lane, r *Row, due bool) (kept bool) {
	if l.known[r.ID] != nil || l.parked[r.ID] != nil {
		return false
	}
	h := l.heads[r.ID]
	if r.Key == "" {
		if h != nil && r.Large {
			b.sooner(l, h, b.now)
			return false
		}
		if h != nil { // it was read before its retry was asked for
			r.call.waited = true
			b.removeHead(l, h)
		}
		return b.acceptLoose(l, r, due)
	}
	if h != nil {
		b.sooner(l, h, b.now)
		return false
	}
	if r.Attempts > 0 {
		// It waits for another attempt and so blocks its key, though we were not told: an operator asked for it again.
		b.sentAgain(l, r)
		return false
	}
	if l.shadow.has(r.Key) {
		b.refuse(l, r.Key, r.ID, due)
		b.waitsInVain(l, b.topicOf(r.Topic))
		return false
	}
	t := b.topicOf(r.Topic)
	if t.closed && l.keys[r.Key] == nil && b.fullFor(t) {
		if !due {
			b.refuse(l, r.Key, r.ID, due)
			t.refused |= 1 << l.term.Lane
		}
		return false
	}
	k := l.keyOf(r.Key)
	idle := k.under == nil && k.n == 0
	switch {
	case !due && k.joinsBefore(r.ID) && !r.Large && !t.closed:
		return b.join(k, r, false)
	case !due && k.joinsBefore(r.ID):
		b.putBack(k)
		b.park(k, r, due)
		b.advance(k)
		return false
	case b.parks(k):
		b.park(k, r, due)
		if k.topic != nil && k.topic != t && k.parked.len() > 0 && k.parked.lowest() == r.ID {
			b.goesOn(k)
		}
	case idle && t.closed:
		b.wait(k, t)
		t.latest = k
		b.park(k, r, due)
	case r.Large:
		b.park(k, r, due)
		b.advance(k)
		return false
	default:
		return b.join(k, r, due)
	}
	b.tidy(k)
	return false
}

// parks says that what is read of a key is parked.
func (b *Board) parks(k *key) bool {
	return k.blocked() || k.stuck() || k.parked.len() > 0 || int(k.n) >= b.cfg.Chain
}

// acceptLoose takes a row without a key.
func (b *Board) acceptLoose(l *lane, r *Row, due bool) (kept bool) {
	t := b.topicOf(r.Topic)
	if t.closed {
		k := l.keyOf(t.pen)
		b.wait(k, t)
		t.latest = k
		b.park(k, r, due)
		b.tidy(k)
		return false
	}
	if r.Large {
		k := l.keyOf(t.pen)
		b.park(k, r, due)
		b.advance(k)
		return false
	}
	b.keep(l, r)
	b.enqueue(r)
	return true
}

// putBackLoose parks a row without a key that was under way, or queued.
func (b *Board) putBackLoose(l *lane, r *Row, t *topic, again bool) {
	k := l.keyOf(t.pen)
	b.wait(k, t)
	b.parkAgain(k, r, again)
	b.advance(k)
}
