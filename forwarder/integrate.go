package forwarder

import (
	"time"
)

// progress is what a read came to.
type progress struct {
	added   int  // rows that are new in memory
	more    bool // there may be more to read
	short   bool // the request's span was too short to reach the end of a lane
	rewound bool // a lane was read from below its mark on
}

// integrate takes over a complete response. Rows that waited for their turn come before those that were
// read for the first time, and what the sweep suspected comes last: whatever was read in the proper
// way is known by then.
func (b *board) integrate(req request, res response, now time.Time) (p progress) {
	for _, l := range req.lanes {
		if !res.owned[l.number] && !l.lost {
			b.loseLane(l)
		}
	}
	read := make(map[int16]*lane, len(req.lanes))
	for _, l := range req.lanes {
		read[l.number] = l
	}
	before := b.buffered
	for _, w := range req.wanted {
		if w.why != forSweep {
			b.integrateWanted(w, res, now)
		}
	}

	counts := make(map[int16]int64, len(req.lanes))
	last := make(map[int16]int64, len(req.lanes))
	for i := range res.ready {
		f := &res.ready[i]
		counts[f.laneNumber]++
		last[f.laneNumber] = f.id
		b.acceptFetched(read[f.laneNumber], f, now)
	}
	for i, l := range req.lanes {
		if l.lost {
			continue
		}
		start := l.mark
		if res.rewind >= 0 {
			start = min(start, res.rewind)
		}
		p.rewound = p.rewound || start < l.mark
		if req.limits[i].rows == 0 { // there was no room
			l.mark, p.more = start, true
			continue
		}
		if l.full = counts[l.number] >= req.limits[i].of(start, l.mark); l.full {
			l.mark = last[l.number]
			l.top = max(l.top, l.mark)
			p.more = true
			continue
		}
		// Everything visible past the start was returned, as far as the read went. A row up to the sequence's
		// value that was not belongs to a transaction that is tracked, and comes back with it.
		end := max(l.mark, res.snapshot.seq)
		if end-start > req.span {
			end, p.more, p.short = start+req.span, true, true
		}
		l.mark = end
		l.top = max(l.top, last[l.number])
	}
	for _, l := range b.lanes {
		if read[l.number] != l && res.rewind >= 0 {
			l.mark = min(l.mark, res.rewind)
		}
		if read[l.number] != l && !l.draining {
			p.more = true
		}
	}
	clear(counts)
	for i := range res.due {
		counts[res.due[i].laneNumber]++
		b.acceptFetched(read[res.due[i].laneNumber], &res.due[i], now)
	}
	for i, n := range req.due {
		req.lanes[i].manyDue = counts[req.lanes[i].number] >= n
	}
	for _, w := range req.wanted {
		if w.why == forSweep {
			b.integrateWanted(w, res, now)
		}
	}
	p.added, p.more = b.buffered-before, p.more || len(b.releases) > 0
	return p
}

func (b *board) acceptFetched(l *lane, f *fetched, now time.Time) {
	if l == nil || l.lost || l.draining {
		return
	}
	f.row.lane = l
	b.accept(&f.row, f.keyText, now)
}

func (b *board) integrateWanted(w wanted, res response, now time.Time) {
	if w.topic != nil {
		w.topic.wanted = false
	}
	if w.lane.lost || w.lane.draining {
		return
	}
	f, found := res.byID[w.id]
	switch {
	case !res.owned[w.lane.number]: // its lane was not among those that were read
		b.wantAgain(w, now)
		return
	case !found, f.dead && (w.why == forRelease || w.why == forTrial) && w.key.isBucket():
		b.vanished(w)
		return
	case f.dead && (w.why == forRelease || w.why == forTrial):
		// An operator gave it up while it waited; now it holds its key.
		w.key.unskip(w.id)
		b.addHead(w.key, head{id: w.id, key: w.key.name, topic: f.topic, dead: true}, now)
		return
	}
	if _, under := w.lane.inflight[w.id]; under {
		if w.why == forRelease && w.key.isBucket() { // it was read again meanwhile
			w.key.unskip(w.id)
			b.advance(w.key)
		}
		return
	}
	r := f.row
	r.lane, r.held = w.lane, w.why == forRelease || w.why == forRetry
	switch w.why {
	case forRelease:
		if w.key.blocked() || !w.key.isBucket() && (len(w.key.skipped) == 0 || w.key.skipped[0] != w.id) {
			b.advance(w.key) // it stays skipped; one that must go first was put back during the read
			return
		}
		w.key.unskip(w.id)
		if w.key.isBucket() {
			b.accept(&r, "", now)
		} else {
			r.key = w.key
			b.append(w.key, &r)
		}
		if len(w.key.skipped) > 0 || w.key.overflow != 0 {
			b.askAgain(w.key)
		} else if w.key.isBucket() {
			b.advance(w.key)
		}
	case forRetry:
		if w.key != nil {
			h := w.key.heads[w.id]
			if h == nil {
				return
			}
			if f.dead {
				b.retryHead(w.key, w.id, h, now.Add(headRecheck))
				return
			}
		}
		r.key, r.probe = w.key, w.key != nil
		b.enqueue(&r)
		b.tryTopic(w.topic, &r)
	case forTrial:
		if other := b.topics[r.topic]; other != nil && other != w.topic {
			b.blockTopic(w.key, other) // its first row is on another topic than when it was blocked
			return
		}
		if w.key.isBucket() {
			r.bucket = w.key
		} else {
			r.key, r.probe = w.key, true
		}
		b.enqueue(&r)
		b.tryTopic(w.topic, &r)
	case forSweep:
		if !f.dead && r.id <= w.lane.mark { // what lies above is read in its order
			b.observe.swept(r.id)
			b.accept(&r, f.keyText, now)
		}
	}
}

// tryTopic lets a row through although its topic is paused.
func (b *board) tryTopic(t *topic, r *row) {
	if t != nil && t.name == r.topic && b.topics[t.name] == t && t.trial == nil {
		t.trial = r
	}
}

// askAgain puts a key on the list of releases unless its chain is full enough.
func (b *board) askAgain(k *key) {
	if !k.releasing && (k.isBucket() || len(k.chain) <= b.maxChain/4) {
		k.releasing = true
		b.releases = append(b.releases, k)
	}
}

// vanished deals with a row that is no longer pending: published by a stale owner, or changed by an operator.
func (b *board) vanished(w wanted) {
	switch {
	case w.key == nil || w.why == forSweep:
	case w.why == forRetry:
		b.removeHead(w.key, w.id)
	default:
		w.key.unskip(w.id)
		if w.why == forTrial && len(w.key.skipped) == 0 {
			b.unblockTopic(w.key)
		}
		b.advance(w.key)
	}
}
