package board

import (
	"slices"
	"time"
)

// degrade adds a topic to the list of topics that are paused, slow, or have waiting keys.
func (b *Board) degrade(t *topic) {
	if !t.degraded {
		t.degraded = true
		b.degraded = append(b.degraded, t)
	}
}

// forgetDegraded removes topics from that list that are open again with nothing left to catch up.
func (b *Board) forgetDegraded() {
	kept := b.degraded[:0]
	owned := uint64(0)
	for n, l := range b.lanes {
		if l != nil && !l.handing {
			owned |= 1 << n
		}
	}
	for _, t := range b.degraded {
		if !t.paused && !t.byOperator {
			t.unseen &= owned // others load requeued rows when they take a lane
		}
		if t.paused || t.byOperator || t.slow || t.jammed || t.lanes != 0 || t.unseen != 0 {
			kept = append(kept, t)
			continue
		}
		t.degraded, t.low, t.candidates = false, nil, nil
		b.forgetTopic(t)
	}
	clear(b.degraded[len(kept):])
	b.degraded = kept
}

// mostFirsts is the approximate number of ids that Firsts returns for a lane.
const mostFirsts = 4096

// Firsts returns the ids of the first messages of the lane's keys that wait for a closed or slow topic: the other rows
// of the key, perhaps on other topics, wait for them.
func (b *Board) Firsts(t Term) (ids []int64) {
	l := b.open(t)
	if l == nil {
		return nil
	}
	for name, d := range l.waits {
		if k := l.keys[name]; len(ids) < mostFirsts && d.topic.closed && (k == nil || k.isIdle(d.low)) {
			ids = append(ids, d.low)
		}
	}
	slices.Sort(ids)
	for _, t := range b.degraded {
		for _, queue := range []*list[Call, *Call]{&t.fresh, &t.waited} {
			for c := queue.front; t.slow && c != nil; c = c.next {
				if c.key != nil && c.key.lane == l {
					ids = append(ids, c.Row.ID)
				}
			}
		}
	}
	return ids
}

// isIdle reports whether no row of a key is in memory, and no row up to an id waits for another attempt.
func (k *key) isIdle(id int64) bool { return k.inFlight == nil && k.n == 0 && !k.blocked(id) }

// FirstsGone handles those of these ids that are no longer pending, because another settled or deleted them. The next
// rows of their keys are read.
func (b *Board) FirstsGone(now time.Time, t Term, ids []int64) {
	b.now = now
	l := b.open(t)
	if l == nil {
		return
	}
	for _, id := range ids {
		r := l.known[id]
		if r == nil || r.call.state != pending || r.call.key == nil {
			continue
		}
		if h := l.heads[id]; !r.call.pass {
			b.putBack(r.call.key)
			b.advance(r.call.key)
		} else if h != nil {
			b.withdraw(l, r)
			b.schedule(l, h, now)
			b.advance(r.call.key)
		}
	}
	gone := make(map[int64]bool, len(ids))
	for _, id := range ids {
		gone[id] = true
	}
	var names []string
	for name, d := range l.waits {
		if d.topic.closed && gone[d.low] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		b.unblock(l, name)
	}
}

// pause closes the topic of a row that could not be sent, or closes it for longer if the row was its probe. Rows that
// were sent before the topic was paused change nothing.
func (b *Board) pause(r *Row, err error, guessed bool) {
	t := b.topicOf(r.Topic)
	if t.paused && t.probe != r {
		return
	}
	t.probe, t.paused, t.guessed, t.err = nil, true, guessed, err
	t.failures++
	t.until, t.repeat = b.now.Add(b.cfg.OutageBackoff(t.failures)), b.now.Add(repeatEvery)
	b.degrade(t)
	b.update(t)
	b.report(Report{
		Kind: TopicPaused, Topic: t.name, Failures: t.failures, Wait: t.until.Sub(b.now), Guessed: guessed, Err: err,
	})
}

// PauseByOperator receives all topics that are currently paused by an operator. Nothing of them is published, not even
// a probe, until they are no longer listed.
func (b *Board) PauseByOperator(now time.Time, topics []string) {
	b.now = now
	for _, name := range topics {
		if t := b.topicOf(name); !t.byOperator {
			t.byOperator = true
			b.degrade(t)
			b.update(t)
			b.report(Report{Kind: TopicPaused, Topic: name, ByOperator: true})
		}
	}
	for _, t := range b.degraded {
		if t.byOperator && !slices.Contains(topics, t.name) {
			t.byOperator = false
			b.update(t)
			b.retryOverdue(t)
			b.report(Report{Kind: TopicResumed, Topic: t.name, ByOperator: true})
		}
	}
}

// reopen ends the pause of a topic. Its deferred rows are caught up as there is room.
func (b *Board) reopen(t *topic) {
	probe := t.probe
	t.probe, t.paused, t.guessed, t.failures, t.err = nil, false, false, 0, nil
	b.retryOverdue(t)
	if probe != nil && probe.call.state == pending {
		b.enqueue(probe)
	}
	b.update(t)
	if !t.jammed {
		b.report(Report{Kind: TopicResumed, Topic: t.name})
	}
}

// hasLane reports whether there is a lane that is not being handed back.
func (b *Board) hasLane() bool {
	return slices.ContainsFunc(b.lanes[:], func(l *lane) bool { return l != nil && !l.handing })
}

// reopenIdle ends pauses if there is no lane to send a probe from.
func (b *Board) reopenIdle() {
	for _, t := range b.degraded {
		if !b.stopped && t.wantsProbe() && !b.now.Before(t.until) && !b.hasLane() {
			b.reopen(t)
		}
	}
}

// candidate is a row that may test whether a topic works again.
type candidate struct {
	term Term
	id   int64
	name string // of its key
}

const mostCandidates = 64 // of a topic

// addCandidate records a row that may test whether a topic works again. The newest comes first, because most of those
// that wait may fail by their own fault, and rows that were handed out before come last.
func (t *topic) addCandidate(p candidate, again bool) {
	switch n := len(t.candidates); {
	case !t.closed && t.unseen == 0:
	case again:
		if !slices.Contains(t.candidates, p) {
			t.candidates = slices.Insert(t.candidates, 0, p)
		}
	case n > 0 && t.candidates[n-1].id > p.id: // the newest stays the next one
		t.candidates = slices.Insert(t.candidates, n-1, p)
	default:
		t.candidates = append(t.candidates, p)
	}
	if len(t.candidates) > mostCandidates {
		t.candidates = t.candidates[1:] // a tried one if there is any, as these come first
	}
}

// nextProbe picks the message that tests whether a topic works again: the last deferred one, and a different one each
// time: if some messages fail by their own fault, a good one is soon found. If there is none, or if all have failed for
// an unknown reason, the topic is opened: the next message is the probe.
func (b *Board) nextProbe(t *topic) (candidate, bool) {
	for n := len(t.candidates); n > 0 && !(t.guessed && t.failures > n); n = len(t.candidates) {
		p := t.candidates[n-1]
		copy(t.candidates[1:], t.candidates)
		if t.candidates[0] = p; b.mayProbe(t, p) {
			return p, true
		}
		t.candidates = t.candidates[1:]
	}
	return candidate{}, false
}

// mayProbe reports whether a row waits for a topic, and no other row of its key has to go before it.
func (b *Board) mayProbe(t *topic, p candidate) bool {
	l := b.open(p.term)
	if l == nil || p.id == 0 || l.knows(p.id) {
		return false
	}
	if p.name == "" {
		return true
	}
	d, waits := l.waits[p.name]
	k := l.keys[p.name]
	return (l.over == 0 || p.id < l.over) && waits && d.topic == t && d.low == p.id &&
		(k == nil || k.isIdle(p.id) && (k.low == 0 || k.low > p.id))
}
