package board

// key is an ordering key of a lane with rows in memory, or heads, or of which something is deferred. Its rows leave one
// after another: first the one under way, then the chain, then what is deferred. While it is blocked, or its chain is
// full, the rows read for it are deferred, except for ids that belong inside the chain.
type key struct {
	lane        *lane
	name        string
	under       *Row // under way, or about to be with a pass
	first, last *Row // the chain
	n           int32
	listed      bool  // on the lane's list
	asked       bool  // a read under way catches up with it
	deadNext    bool  // the row at low is dead, and blocks the key when it is its turn
	moreDue     bool  // something of it fell due and was not kept
	top         int64 // no id in the chain is higher
	heads       ids   // rows that wait for another attempt: they block the key, and the lowest is tried before the others
	low         int64 // what it has from this id on is deferred; 0 = nothing
	links[key]        // on the lane's list of those to be caught up
}

// blocked says that a row of a key waits for another attempt, its own or that of one before it.
func (k *key) blocked(id int64) bool { return k.heads.len() > 0 && k.heads.lowest() <= id }

// stuck says that the first row of the chain is kept from going: it is one of the few of a slow topic in memory.
func (k *key) stuck() bool { return k.first != nil && k.first.call.topic.closed }

func (l *lane) keyOf(name string) *key {
	k := l.keys[name]
	if k == nil {
		k = &key{lane: l, name: name}
		l.keys[name] = k
	}
	return k
}

// join puts a row into its key's chain: at the end, which is its place if it fell due, or before those with higher ids,
// which were committed earlier. With that row its topic may have enough in memory: then it is deferred.
func (b *Board) join(k *key, r *Row, due bool) (kept bool) {
	b.keep(k.lane, r)
	r.call.key = k
	at := &k.first
	switch {
	case due || !k.joinsBefore(r.ID):
		if k.last != nil {
			at = &k.last.call.behind
		}
		k.last = r
	default:
		if first := k.first; first.ID > r.ID && first.call.state == pending {
			b.unqueue(&first.call)
			first.call.state = idle
		}
		for (*at).ID < r.ID {
			at = &(*at).call.behind
		}
	}
	r.call.behind, *at = *at, r
	if k.n++; k.n == 1 {
		k.top = 0
	}
	k.top = max(k.top, r.ID)
	if last := k.last; int(k.n) > b.cfg.Chain {
		b.withdraw(k.lane, last)
		k.lane.putsBack(last, last.call.Again)
		b.postpone(k, last)
	}
	b.advance(k)
	return r.call.state != dropped
}

// joinsBefore says that a row that did not fall due comes before others of its key's chain.
func (k *key) joinsBefore(id int64) bool {
	if id > k.top {
		return false
	}
	for r := k.first; r != nil; r = r.call.behind {
		if r.ID > id {
			return true
		}
	}
	return false
}

// queueFirst queues the first row of the chain, unless another one is under way. If its topic is closed the key waits
// for that.
func (b *Board) queueFirst(k *key) {
	r := k.first
	if r == nil || k.under != nil || r.call.state == pending || k.blocked(r.ID) {
		return
	}
	if t := r.call.topic; t.closed {
		b.putBackFor(k, t)
	} else {
		b.enqueue(r)
	}
}

// putBackFor defers the chain of a key whose first row is on a closed topic.
func (b *Board) putBackFor(k *key, t *topic) {
	b.deferFor(k.lane, t, k.first, k.first.call.Again)
	b.putBack(k)
}

// putBack defers the chain of a key.
func (b *Board) putBack(k *key) {
	r := k.first
	k.first, k.last, k.n = nil, nil, 0
	for r != nil {
		behind := r.call.behind
		r.call.behind = nil
		b.drop(k.lane, r)
		k.lane.putsBack(r, r.call.Again)
		b.postpone(k, r)
		r = behind
	}
}

// withdraw takes a row out of memory, unless it is under way.
func (b *Board) withdraw(l *lane, r *Row) {
	c := &r.call
	if c.state != idle && c.state != pending {
		return
	}
	b.drop(l, r)
	switch k := c.key; {
	case k == nil:
	case c.pass:
		k.under = nil
	default:
		var before *Row
		at := &k.first
		for *at != r {
			before, at = *at, &(*at).call.behind
		}
		*at = c.behind
		if k.last == r {
			k.last = before
		}
		c.behind = nil
		k.n--
	}
}

// advance goes on with a key after something of it changed: it queues the next row, catches up with what is deferred, or
// forgets the key.
func (b *Board) advance(k *key) {
	b.queueFirst(k)
	few := int(k.n) <= b.cfg.Chain/4 && (!k.deadNext || k.isIdle(k.low))
	if k.low != 0 && !k.blocked(k.low) && !k.asked && !k.listed && !k.stuck() && few {
		k.listed = true
		k.lane.catching.push(k)
		b.asksMore = true
	}
	if k.moreDue && k.heads.len() == 0 && !k.stuck() && k.low == 0 && int(k.n) <= b.cfg.Chain/4 {
		k.moreDue, b.wantDue, b.asksMore = false, true, true
	}
	if k.heads.len() > 0 {
		b.endWait(k.lane, k.lane.heads[k.heads.lowest()])
	}
	b.tidy(k)
}

// tidy forgets a key of which nothing is left.
func (b *Board) tidy(k *key) {
	if k.under != nil || k.n > 0 || k.heads.len() > 0 || k.low != 0 || k.asked {
		return
	}
	b.unlist(k)
	if k.lane.keys[k.name] == k {
		delete(k.lane.keys, k.name)
	}
}

func (b *Board) unlist(k *key) {
	if k.listed {
		k.listed = false
		k.lane.catching.remove(k)
	}
}
