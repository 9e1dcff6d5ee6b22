package dispatch

// key is an ordering key of a lane that has rows in memory, blocked rows, or deferred rows. Its rows leave one after
// another: first the one in flight, then the queue, then the deferred rows. While it is blocked, or its queue is full,
// the rows read for it are deferred, except for ids that belong inside the queue.
type key struct {
	lane        *lane
	name        string
	inFlight    *Row // in flight, or about to be with a pass
	first, last *Row // the queue
	n           int32
	listed      bool  // on the lane's list
	inRead      bool  // a read in flight catches up with it
	deadNext    bool  // the row at low is dead, and will block the key
	moreDue     bool  // a due row of it was not kept, although it is not blocked
	top         int64 // the highest id in the queue
	blockedIDs  ids   // rows that wait for another attempt: they block the key, and the lowest is tried before the others
	low         int64 // rows from this id on are deferred; 0 = none
	links[key]        // on the lane's list of those to be caught up
}

// blocked reports whether a row of a key waits for another attempt, its own or that of an earlier row.
func (k *key) blocked(id int64) bool { return len(k.blockedIDs) > 0 && k.blockedIDs[0] <= id }

// firstIsClosed reports whether the first row of the queue must wait: it is one of the few rows of a slow topic in
// memory.
func (k *key) firstIsClosed() bool { return k.first != nil && k.first.call.topic.closed }

func (l *lane) keyOf(name string) *key {
	k := l.keys[name]
	if k == nil {
		k = &key{lane: l, name: name}
		l.keys[name] = k
	}
	return k
}

// addToKey puts a row into its key's queue: at the end if it fell due, or before rows with higher ids, which were
// committed earlier. If the topic has enough rows in memory with this one, the row is deferred.
func (d *Dispatcher) addToKey(k *key, r *Row, due bool) (kept bool) {
	d.keep(k.lane, r)
	r.call.key = k
	at := &k.first
	switch {
	case due || !k.goesBefore(r.ID):
		if k.last != nil {
			at = &k.last.call.nextOfKey
		}
		k.last = r
	default:
		if first := k.first; first.ID > r.ID && first.call.state == pending {
			d.unqueue(&first.call)
			first.call.state = idle
		}
		for (*at).ID < r.ID {
			at = &(*at).call.nextOfKey
		}
	}
	r.call.nextOfKey, *at = *at, r
	if k.n++; k.n == 1 {
		k.top = 0
	}
	k.top = max(k.top, r.ID)
	d.advance(k)
	return r.call.state != dropped
}

// goesBefore reports whether a row that did not fall due comes before others of its key's queue.
func (k *key) goesBefore(id int64) bool {
	if id > k.top {
		return false
	}
	for r := k.first; r != nil; r = r.call.nextOfKey {
		if r.ID > id {
			return true
		}
	}
	return false
}

// queueFirst queues the first row of the queue, unless another one is in flight. If its topic is closed, the key waits
// for the topic.
func (d *Dispatcher) queueFirst(k *key) {
	r := k.first
	if r == nil || k.inFlight != nil || r.call.state == pending || k.blocked(r.ID) {
		return
	}
	if t := r.call.topic; t.closed {
		d.deferQueueFor(k, t)
	} else {
		d.enqueue(r)
	}
}

// deferQueueFor defers the queue of a key whose first row is on a closed topic.
func (d *Dispatcher) deferQueueFor(k *key, t *topic) {
	d.deferForTopic(k.lane, t, k.first, false)
	d.deferQueue(k)
}

// deferQueue defers the queue of a key.
func (d *Dispatcher) deferQueue(k *key) {
	r := k.first
	k.first, k.last, k.n = nil, nil, 0
	for r != nil {
		behind := r.call.nextOfKey
		r.call.nextOfKey = nil
		d.drop(k.lane, r)
		k.lane.deferredRows++
		d.deferRow(k, r)
		r = behind
	}
}

// withdraw removes a row from memory, unless it is in flight.
func (d *Dispatcher) withdraw(l *lane, r *Row) {
	c := &r.call
	if c.state != idle && c.state != pending {
		return
	}
	d.drop(l, r)
	switch k := c.key; {
	case k == nil:
	case c.bypass:
		k.inFlight = nil
	default:
		var before *Row
		at := &k.first
		for *at != r {
			before, at = *at, &(*at).call.nextOfKey
		}
		*at = c.nextOfKey
		if k.last == r {
			k.last = before
		}
		c.nextOfKey = nil
		k.n--
	}
}

// advance continues with a key after a change: it queues the next row, catches up with deferred rows, or forgets the
// key.
func (d *Dispatcher) advance(k *key) {
	d.queueFirst(k)
	few := int(k.n) <= d.cfg.KeyRows/4 && (!k.deadNext || k.isIdle(k.low))
	if k.low != 0 && !k.blocked(k.low) && !k.inRead && !k.listed && !k.firstIsClosed() && few {
		k.listed = true
		k.lane.toCatchUp.push(k)
		d.wantRead = true
	}
	if k.moreDue && len(k.blockedIDs) == 0 && !k.firstIsClosed() && k.low == 0 && int(k.n) <= d.cfg.KeyRows/4 {
		k.moreDue = false
		d.readDue(dueOfOpen)
	}
	if len(k.blockedIDs) > 0 {
		d.endWaitForLower(k.lane, k.lane.blocked[k.blockedIDs[0]])
	}
	d.forgetIdleKey(k)
}

// forgetIdleKey forgets a key that has nothing left.
func (d *Dispatcher) forgetIdleKey(k *key) {
	if k.inFlight != nil || k.n > 0 || len(k.blockedIDs) > 0 || k.low != 0 || k.inRead {
		return
	}
	d.unlist(k)
	if k.lane.keys[k.name] == k {
		delete(k.lane.keys, k.name)
	}
}

func (d *Dispatcher) unlist(k *key) {
	if k.listed {
		k.listed = false
		k.lane.toCatchUp.remove(k)
	}
}
