package board

import (
	"slices"
	"time"
)

// trouble puts a topic on the list of those that are paused or slow or have keys that wait for them.
func (b *Board) trouble(t *topic) {
	if !t.troubled {
		t.troubled = true
		b.troubled = append(b.troubled, t)
	}
}

// forgetTroubles takes topics off that list which are open again and miss nothing any more.
func (b *Board) forgetTroubles() {
	kept := b.troubled[:0]
	owned := uint64(0)
	for n, l := range b.lanes {
		if l != nil && !l.handing {
			owned |= 1 << n
		}
	}
	for _, t := range b.troubled {
		if !t.paused && !t.byOperator {
			t.unseen &= owned // others load what was sent again when they take a lane
		}
		if t.paused || t.byOperator || t.slow || t.jammed || t.lanes != 0 || t.unseen != 0 {
			kept = append(kept, t)
			continue
		}
		t.troubled, t.low, t.probes = false, nil, nil
		b.forgetTopic(t)
	}
	clear(b.troubled[len(kept):])
	b.troubled = kept
}

// mostFirsts is how many ids Firsts returns of a lane, but for a few.
const mostFirsts = 4096

// Firsts returns, of keys of a lane that wait for a closed or slow topic, the id of the first message: what else the key
// has, perhaps on other topics, waits for it.
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
	for _, t := range b.troubled {
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

// isIdle says that nothing of a key is in memory, and nothing up to an id waits for another attempt.
func (k *key) isIdle(id int64) bool { return k.under == nil && k.n == 0 && !k.blocked(id) }

// FirstsGone names those of them that are not pending any more, as another has settled or deleted them. What their keys
// have next is read.
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
		b.goesOn(l, name)
	}
}

// pause closes the topic of a row that could not be sent, or closes it for longer if the row was its trial. Rows that
// were sent before the topic was paused change nothing.
func (b *Board) pause(r *Row, err error, guessed bool) {
	t := b.topicOf(r.Topic)
	if t.paused && t.trial != r {
		return
	}
	t.trial, t.paused, t.guessed, t.err = nil, true, guessed, err
	t.failures++
	t.until, t.repeat = b.now.Add(b.cfg.OutageBackoff(t.failures)), b.now.Add(repeatEvery)
	b.trouble(t)
	b.update(t)
	b.report(Report{
		Kind: TopicPaused, Topic: t.name, Failures: t.failures, Wait: t.until.Sub(b.now), Guessed: guessed, Err: err,
	})
}

// PauseByOperator takes which topics an operator has paused, all of them each time. Nothing of them is published, not
// even a trial, until they are let go.
func (b *Board) PauseByOperator(now time.Time, topics []string) {
	b.now = now
	for _, name := range topics {
		if t := b.topicOf(name); !t.byOperator {
			t.byOperator = true
			b.trouble(t)
			b.update(t)
			b.report(Report{Kind: TopicPaused, Topic: name, ByOperator: true})
		}
	}
	for _, t := range b.troubled {
		if t.byOperator && !slices.Contains(topics, t.name) {
			t.byOperator = false
			b.update(t)
			b.bringHeads(t)
			b.report(Report{Kind: TopicResumed, Topic: t.name, ByOperator: true})
		}
	}
}

// reopen ends the pause of a topic. What was deferred for its sake is caught up as there is room.
func (b *Board) reopen(t *topic) {
	trial := t.trial
	t.trial, t.paused, t.guessed, t.failures, t.err = nil, false, false, 0, nil
	b.bringHeads(t)
	if trial != nil && trial.call.state == pending {
		b.enqueue(trial)
	}
	b.update(t)
	if !t.jammed {
		b.report(Report{Kind: TopicResumed, Topic: t.name})
	}
}

// hasLane says whether there is any lane that is not handed back.
func (b *Board) hasLane() bool {
	return slices.ContainsFunc(b.lanes[:], func(l *lane) bool { return l != nil && !l.handing })
}

// reopenIdle ends pauses if there is no lane to send a trial from.
func (b *Board) reopenIdle() {
	for _, t := range b.troubled {
		if !b.stopped && t.wantsTrial() && !b.now.Before(t.until) && !b.hasLane() {
			b.reopen(t)
		}
	}
}

// probe is a row that may try whether a topic works again.
type probe struct {
	term Term
	id   int64
	name string // of its key
}

const mostProbes = 64 // of a topic

// mayTry notes a row that may try whether a topic works again. Those that were handed out come last.
func (t *topic) mayTry(p probe, again bool) {
	switch n := len(t.probes); {
	case !t.closed && t.unseen == 0:
	case again:
		if !slices.Contains(t.probes, p) {
			t.probes = slices.Insert(t.probes, 0, p)
		}
	case n < mostProbes:
		t.probes = append(t.probes, p)
	default:
		t.probes[n-1] = p
	}
}

// trialOf picks the message that is to try whether a topic works again: the one that was deferred last, and another one
// each time: if messages fail by their own fault, one that does not is found soon. Without any, or if all have failed
// for an unknown reason, the topic is opened: the next message that comes is the trial.
func (b *Board) trialOf(t *topic) (probe, bool) {
	for n := len(t.probes); n > 0 && !(t.guessed && t.failures > n); n = len(t.probes) {
		p := t.probes[n-1]
		copy(t.probes[1:], t.probes)
		if t.probes[0] = p; b.mayBeTrial(t, p) {
			return p, true
		}
		t.probes = t.probes[1:]
	}
	return probe{}, false
}

// mayBeTrial says that a row waits for a topic, and that nothing of its key is to go before it.
func (b *Board) mayBeTrial(t *topic, p probe) bool {
	l := b.open(p.term)
	if l == nil || p.id == 0 || l.knows(p.id) {
		return false
	}
	if p.name == "" {
		return true
	}
	d, waits := l.waits[p.name]
	k := l.keys[p.name]
	return (l.over == 0 || p.id < l.over) && waits && d.topic == t && d.low == p.id && (k == nil || k.isIdle(p.id) && (k.low == 0 || k.low > p.id))
}
