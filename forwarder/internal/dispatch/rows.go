package dispatch

// keep brings a row into memory.
func (d *Dispatcher) keep(l *lane, r *Row) {
	c := &r.call
	c.Row, c.Attempt, c.topic = r, r.Attempts+1, d.topicOf(r.Topic)
	if r.Untried {
		c.Attempt = 1
	}
	l.known[r.ID] = r
	l.top = max(l.top, r.ID)
	c.topic.count(r, 1)
	d.rows++
	d.bytes += r.size()
}

// count counts a row that comes into memory, or one that leaves it or is now in flight.
func (t *topic) count(r *Row, n int) {
	t.rows += n
	t.bytes += int64(n) * r.size()
}

// drop removes a waiting row from memory.
func (d *Dispatcher) drop(l *lane, r *Row) {
	if r.call.state == pending {
		d.unqueue(&r.call)
	}
	r.call.state = dropped
	delete(l.known, r.ID)
	r.call.topic.count(r, -1)
	d.update(r.call.topic)
	d.rows--
	d.bytes -= r.size()
}

func (r *Row) size() int64 { return int64(len(r.Payload) + len(r.Metadata)) }

// accept handles a row that was read for the first time, or again: it puts it into memory, in its place in its key's
// queue, or not at all. due means that it was read because it fell due: then nothing waits for it, and if it is not
// kept it returns with the next due rows. All other rows that are not kept are deferred.
func (d *Dispatcher) accept(l *lane, r *Row, due bool) (kept bool) {
	if l.known[r.ID] != nil {
		return false
	}
	if r.call.due = due; !due && r.ID > l.top { // it was never read before
		l.top = r.ID
		defer func() {
			if !kept {
				l.deferredRows++
			}
		}()
	}
	b, t := l.blocked[r.ID], d.topicOf(r.Topic)
	// After a cursor went back, a read may return more than there is room for: all rows that were deferred above it.
	noRoom := r.Large || !d.hasSomeRoom()
	if r.Key == "" {
		if b != nil && (noRoom || t.closed) {
			d.retrySooner(l, b, d.now)
			return false
		}
		if b != nil { // it was read before its retry was asked for
			d.removeBlocked(l, b)
		}
		r.call.waited = r.Attempts > 0
		if noRoom || !due && !l.mayPublish(t, r.ID) || t.closed {
			if due && !t.closed {
				d.readDue(dueOfOpen)
			}
			d.deferForTopic(l, t, r, false)
			return false
		}
		d.keep(l, r)
		d.enqueue(r)
		return true
	}
	if b != nil {
		d.retrySooner(l, b, d.now)
		return false
	}
	if r.Attempts > 0 {
		// It waits for another attempt and so blocks its key, although we did not know: an operator requeued it.
		d.blockRequeued(l, r)
		return false
	}
	if l.covers(r.Key, r.ID) {
		return false
	}
	k := l.keyOf(r.Key)
	if due {
		return d.acceptDueOfKey(l, k, r, noRoom)
	}
	switch before := k.goesBefore(r.ID); {
	case !before && d.defers(k, r.ID):
		k.deferFrom(r.ID)
	case !l.mayPublish(t, r.ID):
		d.deferForTopic(l, t, r, false)
		if before {
			d.deferQueue(k)
		}
	case noRoom || int(k.n) >= d.cfg.KeyRows: // the rows behind it are read again
		if k.deferFrom(r.ID); before {
			d.deferQueue(k)
		}
	default:
		return d.addToKey(k, r, false)
	}
	d.advance(k)
	return false
}

// acceptDueOfKey accepts a due row of a key.
func (d *Dispatcher) acceptDueOfKey(l *lane, k *key, r *Row, noRoom bool) (kept bool) {
	switch t := d.topicOf(r.Topic); {
	case t.closed || !d.keepsDue(l, r):
		t.dropDue(l)
		// A blocked key waits for the next poll, or all delayed rows would be read whenever a retry succeeds. So does a row
		// above the cursor, or they would be read for each row of a backlog.
		switch {
		case len(k.blockedIDs) > 0:
			k.moreDue = false
		case !t.closed && r.ID <= l.cursor:
			k.moreDue = true
		}
	case noRoom: // the next read of due rows wants its payload, or comes when there is room
		d.readDue(dueOfOpen)
	default:
		return d.addToKey(k, r, true)
	}
	d.forgetIdleKey(k)
	return false
}

// keepsDue reports whether a due row of a key is kept: no other row of the key has to be read before it.
func (d *Dispatcher) keepsDue(l *lane, r *Row) bool {
	k := l.keys[r.Key]
	return r.ID <= l.cursor && l.waits[r.Key].topic == nil &&
		(k == nil || k.low == 0 && len(k.blockedIDs) == 0 && !d.defers(k, 0))
}

// defers reports whether a row of a key that is read is deferred instead of kept.
func (d *Dispatcher) defers(k *key, id int64) bool {
	return k.blocked(id) || k.firstIsClosed() || int(k.n) >= d.cfg.KeyRows
}
