package board

import "slices"

// park remembers a row that was read by its id alone, as its turn has not come. What there is no room for goes to the
// shadow: the key's highest id.
func (b *Board) park(k *key, r *Row, due bool) {
	full := b.full(k)
	if k.lane.shadow.has(k.name) || full && (k.isPen() || k.parked.len() == 0 || k.parked.highest() < r.ID) {
		b.refuseFor(k, r.ID, b.topicOf(r.Topic), due)
		return
	}
	if b.insert(k, r.ID); full {
		b.refuseHighest(k, r)
	}
}

// refuseHighest takes the place of a key's highest id, perhaps that of a row which was parked last.
func (b *Board) refuseHighest(k *key, last *Row) {
	var t *topic
	highest := k.parked.highest()
	if highest == last.ID {
		t = b.topicOf(last.Topic)
	}
	b.unpark(k, highest)
	b.refuseFor(k, highest, t, false)
}

// full says that no more ids may be parked of a key.
func (b *Board) full(k *key) bool {
	return k.parked.len() >= b.cfg.KeyParked || b.fullFor(k.topic)
}

// fullFor says that no more ids may be parked of any key that waits for a topic, or for none. Topics have half of the
// places, and each of them at most as many as are left of that half: what one that is closed for days leaves behind
// must leave room for others.
func (b *Board) fullFor(t *topic) bool {
	return b.parked >= b.cfg.Parked || t != nil && t.parked >= b.topicsMay()-b.waiting
}

func (b *Board) topicsMay() int { return (b.cfg.Parked + 1) / 2 }

// parkAgain parks a row that was in memory; again says whether it was handed out before. It has a place always: if
// there is none, the key's highest id gives its up.
func (b *Board) parkAgain(k *key, r *Row, again bool) {
	b.insert(k, r.ID)
	if l := k.lane; again && r.Attempts == 0 {
		if l.back == nil {
			l.back = map[int64]struct{}{}
		}
		l.back[r.ID] = struct{}{}
	}
	if k.parked.len() > b.cfg.KeyParked || b.parked > b.cfg.Parked || k.topic != nil && b.waiting > b.topicsMay() {
		b.refuseHighest(k, r)
	}
}

// insert adds an id to those that are parked of a key.
func (b *Board) insert(k *key, id int64) {
	if !k.parked.insert(id) {
		return
	}
	l := k.lane
	l.parked[id] = k
	l.blocks[id/blockIDs]++
	l.top = max(l.top, id)
	b.parked++
	b.countWaits(k, 1)
}

// comesBack takes a parked row that was read again: from now on its row knows whether it was handed out before.
func (b *Board) comesBack(k *key, r *Row) {
	if l := k.lane; len(l.back) > 0 {
		_, r.call.Again = l.back[r.ID]
	}
	b.unpark(k, r.ID)
}

// unpark takes an id out of those that are parked of a key, if it is among them.
func (b *Board) unpark(k *key, id int64) {
	if !k.parked.remove(id) {
		return
	}
	l := k.lane
	delete(l.parked, id)
	delete(l.back, id)
	if l.blocks[id/blockIDs]--; l.blocks[id/blockIDs] == 0 {
		delete(l.blocks, id/blockIDs)
	}
	b.parked--
	b.countWaits(k, -1)
}

// ids is a set of ids, in ascending order. Most are added at the end and taken from the front; one in the middle moves
// the shorter side.
type ids struct {
	list []int64 // from head on
	head int32
}

func (s *ids) len() int { return len(s.list) - int(s.head) }

func (s *ids) all() []int64 { return s.list[s.head:] }

func (s *ids) lowest() int64 { return s.list[s.head] }

func (s *ids) highest() int64 { return s.list[len(s.list)-1] }

func (s *ids) insert(id int64) bool {
	all := s.all()
	i, found := len(all), false
	if i > 0 && all[i-1] >= id {
		i, found = slices.BinarySearch(all, id)
	}
	switch {
	case found:
		return false
	case i >= len(all)/2:
		s.list = slices.Insert(s.list, int(s.head)+i, id)
	default:
		if s.head == 0 {
			gap := min(256, len(s.list)/4+1)
			list := make([]int64, gap+len(s.list))
			copy(list[gap:], s.list)
			s.list, s.head = list, int32(gap)
		}
		h := int(s.head)
		copy(s.list[h-1:], s.list[h:h+i])
		s.list[h-1+i] = id
		s.head--
	}
	return true
}

func (s *ids) remove(id int64) bool {
	all := s.all()
	i, found := slices.BinarySearch(all, id)
	switch {
	case !found:
		return false
	case i < len(all)/2 || i == 0:
		copy(all[1:i+1], all[:i])
		s.head++
	default:
		s.list = slices.Delete(s.list, int(s.head)+i, int(s.head)+i+1)
	}
	switch n := s.len(); {
	case n == 0:
		*s = ids{}
	case s.head > 256 && int(s.head) > n:
		s.list, s.head = slices.Clone(s.all()), 0
	}
	return true
}
