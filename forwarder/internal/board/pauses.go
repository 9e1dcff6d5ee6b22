package board

import (
	"math/bits"
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
	for _, t := range b.troubled {
		if t.paused || t.byOperator || t.slow || t.jammed || t.lanes != 0 || t.refused != 0 {
			kept = append(kept, t)
			continue
		}
		t.troubled, t.waits = false, nil
		b.forgetTopic(t)
	}
	clear(b.troubled[len(kept):])
	b.troubled = kept
}

// wait has a key wait for a closed topic, in the place of another one.
func (b *Board) wait(k *key, t *topic) {
	if k.topic == t {
		return
	}
	b.stopWaiting(k)
	b.unlist(k)
	b.trouble(t)
	if t.waits == nil {
		t.waits = new([Lanes]waits)
	}
	k.topic = t
	t.lanes |= 1 << k.lane.term.Lane
	t.waits[k.lane.term.Lane].keys.push(k)
	b.countWaits(k, k.parked.len())
}

func (b *Board) stopWaiting(k *key) {
	t := k.topic
	if t == nil {
		return
	}
	b.countWaits(k, -k.parked.len())
	w := &t.waits[k.lane.term.Lane]
	w.keys.remove(k)
	if w.keys.front == nil {
		t.lanes &^= 1 << k.lane.term.Lane
	}
	k.topic = nil
}

// countWaits counts n more parked ids of a key, if it waits for a topic.
func (b *Board) countWaits(k *key, n int) {
	if t := k.topic; t != nil {
		t.waits[k.lane.term.Lane].parked += n
		t.parked += n
		b.waiting += n
	}
}

// forgetWaits forgets the keys of a lane that wait for a topic.
func (b *Board) forgetWaits(t *topic, l *lane) {
	mask := uint64(1) << l.term.Lane
	t.refused &^= mask
	if t.lanes&mask != 0 {
		w := &t.waits[l.term.Lane]
		t.parked -= w.parked
		b.waiting -= w.parked
		*w = waits{}
		t.lanes &^= mask
	}
}

// Firsts returns, of each key of a lane that waits for a closed or slow topic, the id of its first message: what else
// the key has, perhaps on other topics, waits for it.
func (b *Board) Firsts(t Term) (ids []int64) {
	l := b.open(t)
	if l == nil {
		return nil
	}
	for _, t := range b.troubled {
		if t.closed && t.waits != nil {
			for k := t.waits[l.term.Lane].keys.front; k != nil; k = k.next {
				if k.heads.len() == 0 && k.under == nil && !k.asked && k.parked.len() > 0 {
					ids = append(ids, k.parked.lowest())
				}
			}
		}
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

// FirstsGone names those of them that are not pending any more, as another has settled or deleted them. They and
// what their keys have next are read by id.
func (b *Board) FirstsGone(now time.Time, t Term, ids []int64) {
	b.now = now
	l := b.open(t)
	if l == nil {
		return
	}
	for _, id := range ids {
		k := l.parked[id]
		if r := l.known[id]; r != nil && r.call.state == pending && r.call.key != nil {
			if r.call.pass {
				if h := l.heads[id]; h != nil {
					b.withdraw(l, r)
					b.schedule(l, h, now)
				}
				continue
			}
			k = r.call.key
			b.putBack(k)
		}
		switch {
		case k == nil:
		case k.heads.len() == 0 && k.parked.len() > 0 && k.parked.lowest() == id:
			b.goesOn(k)
		default:
			b.advance(k) // there may have been no room to park it
		}
	}
}

// goesOn asks for what is parked of a key although the topic that it waits for is closed, as its first message is not
// on that. What was refused of the key for the topic's sake must not wait for it any more, either; all of a pen is on
// its topic.
func (b *Board) goesOn(k *key) {
	k.refused = k.refused || !k.isPen() && k.lane.shadow.has(k.name)
	b.stopWaiting(k)
	b.advance(k)
}

// passed goes on with a key when a row of it is out of the way. If that was the first one, what the key has next, also
// in the shadow, may be on another topic than the one that the key waits for.
func (b *Board) passed(k *key, id int64) {
	if k.topic != nil && k.topic.closed && !k.isPen() && (k.parked.len() == 0 || k.parked.lowest() > id) {
		b.goesOn(k)
	} else {
		b.advance(k)
	}
}

// waitsAfter has a key go on whose row waits for a closed topic, if something is parked that goes before that row: it
// was committed later, and may be on another topic.
func (b *Board) waitsAfter(k *key, id int64) {
	if k.topic != nil && k.parked.len() > 0 && k.parked.lowest() < id {
		b.goesOn(k)
	}
}

// pause closes the topic of a row that could not be sent, or closes it for longer if the row was its trial. Rows that
// were sent before the topic was paused change nothing.
func (b *Board) pause(r *Row, err error, guessed bool) {
	t := b.topicOf(r.Topic)
	if t.paused && t.trial != r {
		return
	}
	if k := r.call.key; t.paused && k != nil && k.topic == t {
		w := &t.waits[k.lane.term.Lane] // the next trial is another key's
		w.keys.remove(k)
		w.keys.pushFront(k)
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

// reopen ends the pause of a topic. The keys that wait for it stay on its list, and come off as there is room.
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

// trialOf picks the key whose first message is to try whether a topic works again: the lowest that is parked, so the
// first that is not settled. It is the key that came last, or else another one each time: if messages fail by their own
// fault, one that does not is found soon. Without any such key it opens the topic: the next message that comes is the
// trial.
func (b *Board) trialOf(t *topic) *key {
	k := t.latest
	t.latest = nil
	if k != nil && k.lane.keys[k.name] == k && k.topic == t && k.heads.len() == 0 && k.parked.len() > 0 &&
		k.under == nil && !k.asked {
		return k
	}
	for range mostSteps {
		lanes := t.lanes &^ (1<<b.turn - 1) // from the one in turn on
		if lanes == 0 {
			lanes = t.lanes
		}
		if lanes == 0 {
			b.reopen(t)
			return nil
		}
		w := &t.waits[bits.TrailingZeros64(lanes)]
		switch k := w.keys.back; {
		case k.heads.len() > 0 || k.parked.len() == 0: // a head goes first
			b.goesOn(k)
		case k.under != nil || k.asked: // its call began before the pause
			w.keys.remove(k)
			w.keys.pushFront(k)
		default:
			return k
		}
	}
	t.until = b.now.Add(lookAgain)
	return nil
}
