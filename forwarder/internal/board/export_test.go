package board

import (
	"fmt"
	"maps"
	"slices"
)

// Counts is what the board's counters say.
type Counts struct {
	Rows              int
	Bytes             int64
	Young, Slow, Hung int // Slow with the expired
	Parked, Unsettled int
}

func (b *Board) Counts() Counts {
	c := Counts{Rows: b.rows, Bytes: b.bytes, Young: b.young.n, Parked: b.parked, Unsettled: b.unsettled}
	for _, t := range b.topics {
		c.Hung += t.hung
		c.Slow += t.old - t.hung
	}
	return c
}

// Sizes is what is remembered.
type Sizes struct{ Topics, Troubled, Keys, Known, Heads, Loose, Shadows int } // Heads with the Loose ones, that have no key

func (b *Board) Sizes() Sizes {
	s := Sizes{Topics: len(b.topics), Troubled: len(b.troubled), Loose: b.loose}
	for _, l := range b.lanes {
		if l != nil {
			s.Keys += len(l.keys)
			s.Known += len(l.known)
			s.Heads += len(l.heads)
			if l.shadow != nil {
				s.Shadows++
			}
		}
	}
	return s
}

// Knows says whether an id needs no second look: in memory, settled since the last read began, parked or a head.
func (b *Board) Knows(t Term, id int64) bool {
	l := b.lane(t)
	if l == nil {
		return false
	}
	_, known := l.known[id]
	_, parked := l.parked[id]
	return known || parked || l.heads[id] != nil
}

// ShadowBits makes the shadows of 64 times so many bits; a power of two.
func (b *Board) ShadowBits(words int) { b.shadowWords = words }

// HasShadow says whether the lane of a term has a shadow, and its lowest id.
func (b *Board) HasShadow(t Term) (low int64, ok bool) {
	if l := b.lane(t); l != nil && l.shadow != nil {
		return l.shadow.low, true
	}
	return 0, false
}

// Damages, for variants that must be found.

// ForgetNow forgets at once what was settled.
func (b *Board) ForgetNow() { b.forget() }

// ClearShadows clears the shadows without a rewind.
func (b *Board) ClearShadows() {
	for _, l := range b.lanes {
		if l != nil && l.shadow != nil {
			clear(l.shadow.bits)
		}
	}
}

// RaiseShadows makes the lowest ids of the shadows too high.
func (b *Board) RaiseShadows() {
	for _, l := range b.lanes {
		if l != nil && l.shadow != nil {
			l.shadow.low++
		}
	}
}

// ForgetHeads lets go of heads whose failure is not settled yet.
func (b *Board) ForgetHeads() {
	for _, l := range b.lanes {
		if l != nil {
			for _, id := range slices.Sorted(maps.Keys(l.heads)) {
				if h := l.heads[id]; h != nil && h.place < 0 && h.key != nil && h.key.under == nil {
					b.removeHead(l, h)
				}
			}
		}
	}
}

// AskFromTheTop changes what was asked for to the highest parked ids of each key: of trials, or of what is unparked.
// To be called after ReadBegins, and TakeAnyway before RowsRead.
func (b *Board) AskFromTheTop(a *Asks, trials bool) {
	taken := map[*key]int{}
	for i, ask := range a.asks {
		if ask.key == nil || ask.key.isPen() || (ask.why == forTrial) != trials {
			continue
		}
		all := ask.key.parked.all()
		taken[ask.key]++
		a.asks[i].id = all[len(all)-taken[ask.key]]
		a.IDs[i] = a.asks[i].id
	}
}

// TakeAnyway takes what was asked for although it is not the lowest of its key.
func (b *Board) TakeAnyway(a Asks, r Read, trials bool) {
	for _, ask := range a.asks {
		f, found := r.ByID[ask.id]
		l, k := b.open(ask.term), ask.key
		if l == nil || k == nil || k.isPen() || !found || f.Dead || l.known[ask.id] != nil || l.heads[ask.id] != nil {
			continue
		}
		if _, waits := slices.BinarySearch(k.parked.all(), ask.id); !waits {
			continue
		}
		t := b.topicOf(f.Row.Topic)
		switch {
		case trials && ask.why == forTrial && ask.topic == t && t.paused && t.trial == nil && k.under == nil && k.heads == 0:
			b.unpark(k, ask.id)
			b.letPass(l, k, f.Row, t)
		case !trials && ask.why == forUnpark && !k.blocked() && int(k.n) < b.cfg.Chain:
			b.stopWaiting(k)
			b.unpark(k, ask.id)
			b.append(k, f.Row)
		}
	}
}

// Revive lets a call that returned or is hung return, or time out, once more.
func (c *Call) Revive(timesOut bool) {
	c.state = hung
	if timesOut {
		c.state = expired
	}
}

// Check compares the counters with a recount from scratch, and the lists with each other. calls are those that have not
// returned, hung ones too.
func (b *Board) Check(calls []*Call) string {
	problem := ""
	want := func(ok bool, format string, args ...any) {
		if !ok && problem == "" {
			problem = fmt.Sprintf(format, args...)
		}
	}
	byState := map[callState]int{}
	rows, bytes, parked, waiting, ready := 0, int64(0), 0, 0, 0
	underWay := map[*lane]int{}
	for _, c := range calls {
		byState[c.state]++
		if c.state == young || c.state == slow || c.state == expired {
			rows++
			bytes += c.Row.size()
			if l := b.lane(c.Row.Term); l != nil {
				underWay[l]++
			}
		}
	}
	inTopics := map[*topic][3]int{}
	for _, c := range calls {
		n := inTopics[c.topic]
		n[0]++
		if c.state != young {
			n[1]++
		}
		if c.state == hung {
			n[2]++
		}
		inTopics[c.topic] = n
	}
	want(byState[young] == b.young.n, "young: %d, counted %d", b.young.n, byState[young])
	want(byState[slow] == b.slow.n, "slow: %d, counted %d", b.slow.n, byState[slow])
	want(len(calls) == b.calls, "calls: %d, counted %d", b.calls, len(calls))
	for _, n := range []callState{idle, pending, returned, dropped} {
		want(byState[n] == 0, "%d calls under way in state %d", byState[n], n)
	}

	topics := map[*topic]bool{}
	for _, t := range b.topics {
		topics[t] = true
		n := inTopics[t]
		want(n == [3]int{t.calls, t.old, t.hung}, "topic %s: calls, old, hung: %d, counted %d", t.name, [3]int{t.calls, t.old, t.hung}, n)
		queued, parkedOf, lanes := 0, 0, uint64(0)
		for _, queue := range []*callList{&t.fresh, &t.waited} {
			n := 0
			for c := queue.front; c != nil; c = c.next {
				n++
				l := b.open(c.Row.Term)
				want(l != nil && c.state == pending && c.topic == t && c.Row.Topic == t.name, "topic %s: row %d is queued in state %d", t.name, c.Row.ID, c.state)
				want(c.waited == (queue == &t.waited), "row %d is on the wrong queue", c.Row.ID)
				if l != nil {
					_, known := l.known[c.Row.ID]
					want(known, "row %d is queued and not known", c.Row.ID)
				}
				if c.key == nil || c.pass {
					rows++
					bytes += c.Row.size()
				} else {
					want(c.key.first == c.Row, "row %d is queued and not the first of its key", c.Row.ID)
				}
			}
			want(n == queue.n, "topic %s: %d queued, counted %d", t.name, queue.n, n)
			queued += n
		}
		if r := t.trial; r != nil {
			want(t.paused, "topic %s is open and has a trial", t.name)
			if r.call.state == pending {
				rows++
				bytes += r.size()
			}
		}
		if t.paused {
			queued = 0
			if t.trial != nil && t.trial.call.state == pending {
				queued = 1
			}
		}
		if t.calls >= b.cfg.Concurrency {
			queued = 0
		}
		want(t.counted == queued && t.inRing == (queued > 0), "topic %s: %d ready, counted %d, in ring %v", t.name, t.counted, queued, t.inRing)
		ready += queued
		if t.waits != nil {
			for n := range t.waits {
				w, parkedHere := &t.waits[n], 0
				for k := w.keys.front; k != nil; k = k.next {
					lanes |= 1 << n
					parkedHere += k.parked.len()
					want(k.topic == t && k.lane == b.lanes[n] && !k.listed, "topic %s: key %q waits by mistake", t.name, k.name)
				}
				want(parkedHere == w.parked, "topic %s lane %d: %d parked, counted %d", t.name, n, w.parked, parkedHere)
				parkedOf += parkedHere
			}
		}
		want(lanes == t.lanes, "topic %s: lanes %b, counted %b", t.name, t.lanes, lanes)
		want(parkedOf == t.parked, "topic %s: %d parked, counted %d", t.name, t.parked, parkedOf)
		waiting += parkedOf
		for n := range int16(Lanes) {
			if t.refused&(1<<n) != 0 {
				l := b.lanes[n]
				want(l != nil && l.shadow != nil, "topic %s: has rows in the shadow of lane %d, which has none", t.name, n)
			}
		}
		want(t.troubled == slices.Contains(b.troubled, t), "topic %s: troubled %v", t.name, t.troubled)
		want(t.troubled || !t.paused && !t.slow && t.lanes == 0 && t.refused == 0, "topic %s: has trouble and is not listed", t.name)
	}
	for _, t := range b.troubled {
		want(topics[t], "topic %s has trouble and is forgotten", t.name)
	}
	want(ready == b.ring.ready, "ready: %d, counted %d", b.ring.ready, ready)

	rowsOf, bytesOf := map[*topic]int{}, map[*topic]int64{}
	for _, l := range b.lanes {
		if l == nil {
			continue
		}
		for _, r := range l.known {
			if s := r.call.state; s == idle || s == pending {
				rowsOf[r.call.topic]++
				bytesOf[r.call.topic] += r.size()
			}
		}
	}
	for _, t := range b.topics {
		want(t.rows == rowsOf[t] && t.bytes == bytesOf[t], "topic %s: %d rows of %d bytes, counted %d, %d", t.name, t.rows, t.bytes, rowsOf[t], bytesOf[t])
	}

	loose := 0
	for n, l := range b.lanes {
		if l == nil {
			continue
		}
		want(l.underWay == underWay[l], "lane %d: %d under way, counted %d", n, l.underWay, underWay[l])
		if l.handing {
			want(l.rows == 0 && l.bytes == 0, "lane %d is handed back and has %d rows", n, l.rows)
			continue
		}
		parkedHere, heads := map[int64]bool{}, map[*key]int32{}
		for id, h := range l.heads {
			want(h.id == id, "head %d is listed as %d", h.id, id)
			want(h.place < 0 || l.retries[h.place] == h, "head %d is not at its place", id)
			if h.key == nil {
				loose++
			} else {
				heads[h.key]++
				want(l.keys[h.key.name] == h.key, "head %d: its key is forgotten", id)
			}
		}
		for i, h := range l.retries {
			want(h.place == i && l.heads[h.id] == h && (i == 0 || !h.due.Before(l.retries[(i-1)/2].due)), "lane %d: heap broken at %d", n, i)
		}
		for name, k := range l.keys {
			want(k.name == name && k.lane == l, "key %q is listed as %q", k.name, name)
			want(k.under != nil || k.n > 0 || k.heads > 0 || k.parked.len() > 0 || k.asked, "key %q is empty", name)
			want(k.heads == heads[k], "key %q: %d heads, counted %d", name, k.heads, heads[k])
			count := int32(0)
			for r := k.first; r != nil; r = r.call.behind {
				count++
				rows++
				bytes += r.size()
				want(r.call.state == idle || r.call.state == pending && r == k.first, "key %q: row %d in state %d", name, r.ID, r.call.state)
				want(r.call.behind != nil || k.last == r, "key %q: the last is not the last", name)
			}
			want(count == k.n, "key %q: chain of %d, counted %d", name, k.n, count)
			want(int(k.n) <= b.cfg.Chain, "key %q: chain of %d", name, k.n)
			want(k.n == 0 || !k.blocked(), "key %q is blocked and has a chain", name)
			want(k.n == 0 || k.under != nil || k.first.call.state == pending, "key %q: its first is neither queued nor is another one under way", name)
			if r := k.under; r != nil {
				want(r.call.state == young || r.call.state == slow || r.call.state == expired || r.call.state == pending && r.call.pass, "key %q: row %d is under way in state %d", name, r.ID, r.call.state)
				want(k.first == nil || k.first.call.state == idle, "key %q has two calls", name)
			}
			want(slices.IsSorted(k.parked.all()) && k.parked.len() <= b.cfg.KeyParked, "key %q: parked %v", name, k.parked.all())
			for _, id := range k.parked.all() {
				want(!parkedHere[id] && l.heads[id] == nil, "id %d is parked twice", id)
				parkedHere[id] = true
				_, known := l.known[id]
				want(!known || k.isPen(), "id %d is parked and known", id)
			}
			want(k.topic == nil || k.topic.lanes&(1<<n) != 0, "key %q waits for topic %v that does not know", name, k.topic)
			want(k.parked.len() == 0 || k.blocked() || k.under != nil || k.n > 0 || k.asked || k.listed || k.topic != nil || int(k.n) > b.cfg.Chain/4 && !k.isPen(), "key %q: nobody asks for what is parked", name)
		}
		want(len(parkedHere) == len(l.parked), "lane %d: %d parked, counted %d", n, len(l.parked), len(parkedHere))
		blocks := map[int64]int{}
		for id := range l.parked {
			want(parkedHere[id], "id %d is parked nowhere", id)
			blocks[id/blockIDs]++
		}
		want(maps.Equal(blocks, l.blocks), "lane %d: blocks %v, counted %v", n, l.blocks, blocks)
		parked += len(l.parked)
		for k := l.unparking.front; k != nil; k = k.next {
			want(k.listed && k.topic == nil && l.keys[k.name] == k, "key %q is unparked by mistake", k.name)
		}
	}
	want(rows == b.rows, "rows: %d, counted %d", b.rows, rows)
	want(bytes == b.bytes, "bytes: %d, counted %d", b.bytes, bytes)
	want(parked == b.parked && parked <= b.cfg.Parked, "parked: %d, counted %d", b.parked, parked)
	want(waiting == b.waiting, "waiting: %d, counted %d", b.waiting, waiting)
	want(loose == b.loose, "loose: %d, counted %d", b.loose, loose)
	return problem
}
