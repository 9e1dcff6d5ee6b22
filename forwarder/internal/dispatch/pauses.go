package dispatch

import (
	"slices"
	"time"
)

// degrade adds a topic to the list of topics that are paused, slow, or have waiting keys.
func (d *Dispatcher) degrade(t *topic) {
	if !t.degraded {
		t.degraded = true
		d.degraded = append(d.degraded, t)
	}
}

// forgetDegraded removes topics from that list that are open again with nothing left to catch up.
func (d *Dispatcher) forgetDegraded() {
	kept := d.degraded[:0]
	owned := uint64(0)
	for n, l := range d.lanes {
		if l != nil && !l.releasing {
			owned |= 1 << n
		}
	}
	for _, t := range d.degraded {
		if !t.paused && !t.byOperator {
			t.dueUnseen &= owned // others load requeued rows when they take a lane
		}
		if t.paused || t.byOperator || t.slow || t.exhausted || t.deferredIn != 0 || t.dueUnseen != 0 {
			kept = append(kept, t)
			continue
		}
		t.degraded, t.deferredFrom, t.candidates = false, nil, nil
		d.forgetTopic(t)
	}
	clear(d.degraded[len(kept):])
	d.degraded = kept
}

// maxWaitingIDs is the approximate number of ids that WaitingIDs returns for a lane.
const maxWaitingIDs = 4096

// WaitingIDs returns the ids of the first messages of the lane's keys that wait for a closed or slow topic: the other
// rows of the key, perhaps on other topics, wait for them.
func (d *Dispatcher) WaitingIDs(t Assignment) (ids []int64) {
	l := d.activeLane(t)
	if l == nil {
		return nil
	}
	for name, w := range l.waits {
		if k := l.keys[name]; len(ids) < maxWaitingIDs && w.topic.closed && (k == nil || k.isIdle(w.low)) {
			ids = append(ids, w.low)
		}
	}
	slices.Sort(ids)
	for _, t := range d.degraded {
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

// WaitingGone handles those of these ids that are no longer pending, because another settled or deleted them. The next
// rows of their keys are read.
func (d *Dispatcher) WaitingGone(now time.Time, t Assignment, ids []int64) {
	d.now = now
	l := d.activeLane(t)
	if l == nil {
		return
	}
	for _, id := range ids {
		r := l.known[id]
		if r == nil || r.call.state != pending || r.call.key == nil {
			continue
		}
		if b := l.blocked[id]; !r.call.bypass {
			d.deferQueue(r.call.key)
			d.advance(r.call.key)
		} else if b != nil {
			d.withdraw(l, r)
			d.schedule(l, b, now)
			d.advance(r.call.key)
		}
	}
	gone := make(map[int64]bool, len(ids))
	for _, id := range ids {
		gone[id] = true
	}
	var names []string
	for name, w := range l.waits {
		if k := l.keys[name]; w.topic.closed && gone[w.low] && (k == nil || k.isIdle(w.low)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		d.endTopicWait(l, name)
	}
}

// pause closes the topic of a row that could not be sent, or closes it for longer if the row was its probe. Rows that
// were sent before the topic was paused change nothing.
func (d *Dispatcher) pause(r *Row, err error, unclassified bool) {
	t := d.topicOf(r.Topic)
	if t.paused && t.probe != r {
		return
	}
	t.probe, t.paused, t.unclassified, t.err = nil, true, unclassified, err
	t.failures++
	t.until, t.reportAgainAt = d.now.Add(d.cfg.OutageBackoff(t.failures)), d.now.Add(reportInterval)
	d.degrade(t)
	d.update(t)
	d.report(Report{
		Kind: TopicPaused, Topic: t.name, Failures: t.failures, Wait: t.until.Sub(d.now),
		Unclassified: unclassified, Err: err,
	})
}

// PauseByOperator receives all topics that are currently paused by an operator. Nothing of them is published, not even
// a probe, until they are no longer listed.
func (d *Dispatcher) PauseByOperator(now time.Time, topics []string) {
	d.now = now
	for _, name := range topics {
		if t := d.topicOf(name); !t.byOperator {
			t.byOperator = true
			d.degrade(t)
			d.update(t)
			d.readDue(dueOfAll) // a drain names it for these, also if they were read before and not kept
			d.report(Report{Kind: TopicPaused, Topic: name, ByOperator: true})
		}
	}
	for _, t := range d.degraded {
		if t.byOperator && !slices.Contains(topics, t.name) {
			t.byOperator = false
			d.update(t)
			d.retryOverdue(t)
			d.report(Report{Kind: TopicResumed, Topic: t.name, ByOperator: true})
		}
	}
}

// reopen ends the pause of a topic. Its deferred rows are caught up as there is room.
func (d *Dispatcher) reopen(t *topic) {
	probe := t.probe
	if t.unclassified { // reads left out due rows
		d.readDue(dueOfOpen)
	}
	t.probe, t.paused, t.unclassified, t.failures, t.err = nil, false, false, 0, nil
	d.retryOverdue(t)
	if probe != nil && probe.call.state == pending {
		d.enqueue(probe)
	}
	d.update(t)
	if !t.exhausted {
		d.report(Report{Kind: TopicResumed, Topic: t.name})
	}
}

// hasLane reports whether there is a lane that is not being released.
func (d *Dispatcher) hasLane() bool {
	return slices.ContainsFunc(d.lanes[:], func(l *lane) bool { return l != nil && !l.releasing })
}

// reopenIdle ends pauses if there is no lane to send a probe from.
func (d *Dispatcher) reopenIdle() {
	for _, t := range d.degraded {
		if !d.stopped && t.wantsProbe() && !d.now.Before(t.until) && !d.hasLane() {
			d.reopen(t)
		}
	}
}

// candidate is a row that may test whether a topic works again.
type candidate struct {
	assignment Assignment
	id         int64
	name       string // of its key
	due        bool   // it was read because it fell due: nothing waits for it
}

const maxCandidates = 64 // of a topic

// addCandidate records a row that may test whether a topic works again. The newest comes first, because most of those
// that wait may fail by their own fault, and rows that were handed out before come last.
func (t *topic) addCandidate(p candidate, handedOut bool) {
	switch n := len(t.candidates); {
	case !t.closed && t.dueUnseen == 0:
	case slices.Contains(t.candidates, p): // it was read again
	case handedOut:
		t.candidates = slices.Insert(t.candidates, 0, p)
	case n > 0 && t.candidates[n-1].id > p.id: // the newest stays the next one
		t.candidates = slices.Insert(t.candidates, n-1, p)
	default:
		t.candidates = append(t.candidates, p)
	}
	if len(t.candidates) > maxCandidates {
		t.candidates = t.candidates[1:] // a tried one if there is any, as these come first
	}
}

// nextProbe picks the message that tests whether a topic works again: the last deferred one, and a different one each
// time: if some messages fail by their own fault, a good one is soon found. If there is none, or if all have failed for
// an unknown reason, the topic is opened: the next message is the probe.
func (d *Dispatcher) nextProbe(t *topic) (candidate, bool) {
	for n := len(t.candidates); n > 0 && !(t.unclassified && t.failures > n); n = len(t.candidates) {
		p := t.candidates[n-1]
		copy(t.candidates[1:], t.candidates)
		if t.candidates[0] = p; d.mayProbe(t, p) {
			return p, true
		}
		t.candidates = t.candidates[1:]
	}
	return candidate{}, false
}

// mayProbe reports whether a row waits for a topic, and no other row of its key has to go before it.
func (d *Dispatcher) mayProbe(t *topic, p candidate) bool {
	l := d.activeLane(p.assignment)
	if l == nil || p.id == 0 || l.knows(p.id) {
		return false
	}
	if p.name == "" {
		return true
	}
	w, waits := l.waits[p.name]
	k := l.keys[p.name]
	if p.due {
		return !waits && (k == nil || k.isIdle(p.id) && k.low == 0)
	}
	return (l.overflow == 0 || p.id < l.overflow) && waits && w.topic == t && w.low == p.id &&
		(k == nil || k.isIdle(p.id) && (k.low == 0 || k.low > p.id))
}
