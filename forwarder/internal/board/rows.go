package board

// keep brings a row into memory.
func (b *Board) keep(l *lane, r *Row) {
	c := &r.call
	c.Row, c.Attempt, c.topic = r, r.Attempts+1, b.topicOf(r.Topic)
	l.known[r.ID] = r
	l.top = max(l.top, r.ID)
	l.moves(r, 1)
	b.rows++
	b.bytes += r.size()
}

// moves counts a row that comes into memory, or one that leaves it or is now in flight.
func (l *lane) moves(r *Row, n int) {
	t, size := r.call.topic, int64(n)*r.size()
	l.rows += n
	l.bytes += size
	t.rows += n
	t.bytes += size
}

// drop removes a waiting row from memory.
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

// accept handles a row that was read for the first time, or again: it puts it into memory, in its place in its key's
// chain, or not at all. due means that it was read because it fell due: then nothing waits for it, and if it is not
// kept it returns with the next due rows. All other rows that are not kept are deferred.
func (b *Board) accept(l *lane, r *Row, due bool) (kept bool) {
	if l.known[r.ID] != nil {
		return false
	}
	if r.call.due = due; !due && r.ID > l.top { // it was never read before
		l.top = r.ID
		defer func() {
			if !kept {
				l.away++
			}
		}()
	}
	h, t := l.heads[r.ID], b.topicOf(r.Topic)
	if r.Key == "" {
		if h != nil && r.Large {
			b.sooner(l, h, b.now)
			return false
		}
		if h != nil { // it was read before its retry was asked for
			r.call.waited = true
			b.removeHead(l, h)
		}
		if r.Large || !due && !l.mayGo(t, r.ID) || t.closed {
			b.wantDue = b.wantDue || due && !t.closed // its payload was not wanted then
			b.deferFor(l, t, r, false)
			return false
		}
		b.keep(l, r)
		b.enqueue(r)
		return true
	}
	if h != nil {
		b.sooner(l, h, b.now)
		return false
	}
	if r.Attempts > 0 {
		// It waits for another attempt and so blocks its key, although we did not know: an operator requeued it.
		b.sentAgain(l, r)
		return false
	}
	if l.covers(r.Key, r.ID) {
		return false
	}
	k := l.keyOf(r.Key)
	switch before := !due && k.joinsBefore(r.ID); {
	case due && (t.closed || !b.keepsDue(l, r.Key)):
		// A blocked key waits for the next poll, or all delayed rows would be read whenever a retry succeeds.
		k.moreDue = !t.closed && k.heads.len() == 0
		b.tidy(k)
		return false
	case due && r.Large: // its payload was not wanted before, and would be now
		b.wantDue = true
		b.tidy(k)
		return false
	case !before && b.defers(k, r.ID):
		k.deferFrom(r.ID)
	case !due && !l.mayGo(t, r.ID):
		b.deferFor(l, t, r, false)
		if before {
			b.putBack(k)
		}
	case r.Large:
		if k.deferFrom(r.ID); before {
			b.putBack(k)
		}
	default:
		return b.join(k, r, due)
	}
	b.advance(k)
	return false
}

// keepsDue reports whether a due row of a key is kept: no other row of the key has to be read before it.
func (b *Board) keepsDue(l *lane, name string) bool {
	k := l.keys[name]
	return l.waits[name].topic == nil && (k == nil || k.low == 0 && k.heads.len() == 0 && !b.defers(k, 0))
}

// defers reports whether a row of a key that is read is deferred instead of kept.
func (b *Board) defers(k *key, id int64) bool {
	return k.blocked(id) || k.stuck() || int(k.n) >= b.cfg.Chain
}
