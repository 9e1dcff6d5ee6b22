package board

// key is an ordering key of a lane with rows in memory, parked or waiting. Its rows leave one after another: first the
// one under way, then the chain, then what is parked. While it is blocked, or has ids parked, or its chain is full,
// what is read of it is parked, but for ids that belong into the chain.
//
// Rows without an ordering key follow no other, but those of a closed topic are parked in the same way: in a pen,
// which is a key whose name no message can have.
type key struct {
	lane        *lane
	name        string
	under       *Row // under way, or about to be with a pass
	first, last *Row // the chain
	n           int32
	top         int64  // no id in the chain is higher
	heads       ids    // rows that wait for another attempt: they block the key, and the lowest is tried before the others
	topic       *topic // it waits for, and is on its list
	links[key]         // on that list, or the lane's list unparking
	parked      ids
	listed      bool // on the lane's list unparking
	asked       bool // a read under way asks for parked ids
	refused     bool // it sent something to the shadow
}

func (k *key) isPen() bool { return k.name[0] == 0 }

// trial returns which id tries a topic: a key's lowest; of a pen the one that came last, or else another one each time.
func (k *key) trial(failures int, latest bool) int64 {
	switch n := k.parked.len(); {
	case !k.isPen():
		return k.parked.lowest()
	case latest:
		return k.parked.highest()
	default:
		return k.parked.all()[n-1-failures%n]
	}
}

func (k *key) blocked() bool { return k.heads.len() > 0 || k.topic != nil && k.topic.closed }

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
// which were committed earlier, and which may wait for another topic. A topic that the key waited for is open by now,
// and the key waits no more, also if the topic is closed again. With that row its topic may have enough in memory: then
// it is parked.
func (b *Board) join(k *key, r *Row, due bool) (kept bool) {
	b.stopWaiting(k)
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
		b.parkAgain(k, last, last.call.Again)
	}
	b.queueFirst(k)
	b.tidy(k)
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

// queueFirst queues the first row of the chain, unless another one is under way. If its topic is closed the key waits.
func (b *Board) queueFirst(k *key) {
	r := k.first
	if r == nil || k.under != nil || r.call.state == pending || k.blocked() {
		return
	}
	if t := r.call.topic; t.closed {
		b.wait(k, t)
		b.putBack(k)
		b.waitsAfter(k, r.ID)
	} else {
		b.enqueue(r)
	}
}

// putBack parks the chain of a key that is blocked.
func (b *Board) putBack(k *key) {
	r := k.first
	k.first, k.last, k.n = nil, nil, 0
	for r != nil {
		behind := r.call.behind
		r.call.behind = nil
		b.drop(k.lane, r)
		b.parkAgain(k, r, r.call.Again)
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

// advance goes on with a key after something of it changed: it queues the next row, asks for parked ids, or
// forgets the key.
func (b *Board) advance(k *key) {
	if !k.blocked() {
		b.stopWaiting(k)
		b.queueFirst(k)
	}
	if k.heads.len() == 0 && k.topic == nil && !k.asked && !k.stuck() && (k.isPen() || int(k.n) <= b.cfg.Chain/4) {
		switch {
		case k.parked.len() > 0:
			if !k.listed {
				k.listed = true
				k.lane.unparking.push(k)
				b.asksParked = true
			}
		case k.refused:
			b.wantRewind(k)
		}
	}
	b.tidy(k)
}

// tidy forgets a key of which nothing is left.
func (b *Board) tidy(k *key) {
	if k.under != nil || k.n > 0 || k.heads.len() > 0 || k.parked.len() > 0 || k.asked {
		return
	}
	if k.refused {
		b.wantRewind(k)
	}
	b.stopWaiting(k)
	b.unlist(k)
	if k.lane.keys[k.name] == k {
		delete(k.lane.keys, k.name)
	}
}

func (b *Board) unlist(k *key) {
	if k.listed {
		k.listed = false
		k.lane.unparking.remove(k)
	}
}
