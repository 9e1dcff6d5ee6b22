package board

import (
	"math/bits"
	"slices"
	"time"
)

// ask is a row to read by id, and why.
type ask struct {
	why   purpose
	term  Term
	id    int64
	key   *key   // unpark, trial
	head  *head  // retry
	topic *topic // whose trial it is to be
}

type purpose uint8

const (
	forUnpark purpose = iota // it was parked, and its key is free
	forRetry                 // it failed, and another attempt is due
	forTrial                 // it tries whether its topic works again
	forStray                 // it is pending, and unknown to the board
)

func (a *Asks) add(ask ask) {
	a.asks = append(a.asks, ask)
	a.IDs = append(a.IDs, ask.id)
}

const (
	penChunk   = 256  // ids of one pen that a read asks for at most
	mostStrays = 1000 // that wait for a read
)

// wantsTrial says that a topic is to be tried when its pause is over.
func (t *topic) wantsTrial() bool { return t.paused && !t.byOperator && t.trial == nil && !t.asked }

// mayTry says whether a trial of a paused topic may be asked for, or none is needed, as nothing waits for the topic.
func (b *Board) mayTry(t *topic) bool {
	return t.wantsTrial() && !b.now.Before(t.until) && (b.hasPlace(t) || !b.isWaitedFor(t))
}

// isWaitedFor says that keys wait for a topic, or heads that are late.
func (b *Board) isWaitedFor(t *topic) bool { return t.lanes != 0 || b.hasLate(t) }

func (b *Board) askTrials(a *Asks) {
	for _, t := range b.troubled {
		if !b.mayTry(t) {
			continue
		}
		latest := t.latest
		if k := b.trialOf(t); k != nil {
			t.asked, k.asked = true, true
			a.add(ask{why: forTrial, term: k.lane.term, id: k.trial(t.failures, k == latest), key: k, topic: t})
		}
	}
}

// askParked asks for the lowest parked ids of keys that may go on, at most room in all; lanes take turns.
func (b *Board) askParked(a *Asks, room int) {
	for l := range b.inTurn {
		for room > 0 && l.unparking.front != nil {
			k := l.unparking.front
			b.unlist(k)
			room -= b.askOf(a, k, room)
		}
	}
	for _, t := range b.troubled {
		for room > 0 && !t.closed && t.lanes != 0 {
			k := t.waits[bits.TrailingZeros64(t.lanes)].keys.front
			b.stopWaiting(k)
			b.queueFirst(k)
			room -= b.askOf(a, k, room)
		}
	}
}

// askOf asks for parked ids of a key, and returns how many steps that was.
func (b *Board) askOf(a *Asks, k *key, room int) int {
	if k.blocked() || k.asked {
		return 1 // it is listed again when that has changed
	}
	n := b.cfg.Chain - int(k.n)
	if k.isPen() {
		n = penChunk
	}
	all := k.parked.all()
	n = max(0, min(n, room, len(all)))
	for _, id := range all[:n] {
		a.add(ask{why: forUnpark, term: k.lane.term, id: id, key: k})
	}
	if k.asked = n > 0; !k.asked {
		b.advance(k)
	}
	return max(n, 1)
}

// Strays names rows that the sweep found pending below the mark. Those that are unknown are read by id.
func (b *Board) Strays(t Term, ids []int64) {
	l := b.open(t)
	if l == nil {
		return
	}
	for _, id := range ids {
		if !l.knows(id) && (l.shadow == nil || id < l.shadow.low) && len(b.strays) < mostStrays {
			b.strays = append(b.strays, stray{t, id})
			b.effects.Read = true
		}
	}
}

// stray is a row that is pending, and unknown to the board.
type stray struct {
	term Term
	id   int64
}

func (b *Board) askStrays(a *Asks) {
	for _, s := range b.strays {
		a.add(ask{why: forStray, term: s.term, id: s.id})
	}
	b.strays = b.strays[:0]
}

// answered takes a row that was asked for, or hears that it is gone. sawDue are the lanes of which the read saw all
// that fell due.
func (b *Board) answered(a ask, r Read, sawDue uint64) {
	l := b.open(a.term)
	if l == nil {
		return
	}
	f, found := r.ByID[a.id]
	if a.why == forRetry {
		b.retried(l, a, f, found, sawDue)
		return
	}
	k := a.key
	_, waits := slices.BinarySearch(k.parked.all(), a.id)
	switch {
	case !waits: // it was settled meanwhile, or gave up its place
	case !found:
		b.unpark(k, a.id)
		b.passed(k, a.id)
	case f.Dead && k.isPen():
		b.unpark(k, a.id)
	case f.Dead: // an operator gave it up while it waited; now it blocks its key
		b.addHead(l, k.name, a.id, f.Row.Topic, b.now.Add(never))
	case !k.isPen() && f.Row.Attempts > 0: // an operator sent it again while it waited, perhaps with lower ones
		b.sentAgain(l, f.Row)
	case a.why == forTrial:
		b.tried(l, a, f.Row)
	default:
		b.unparked(l, a, f.Row)
	}
}

// unparked takes a row whose turn has come. A key's must still be the lowest: one that must go first may have been
// parked during the read.
func (b *Board) unparked(l *lane, a ask, r *Row) {
	k := a.key
	r.call.waited = true
	if k.isPen() {
		if t := b.topicOf(r.Topic); !t.closed {
			b.comesBack(k, r)
			b.keep(l, r)
			b.enqueue(r)
		} else {
			b.wait(k, t)
		}
		return
	}
	if !k.blocked() && !k.stuck() && k.parked.lowest() == a.id && int(k.n) < b.cfg.Chain {
		b.stopWaiting(k)
		b.comesBack(k, r)
		b.join(k, r, false)
	}
}

// tried takes the message that is to try whether a topic works again.
func (b *Board) tried(l *lane, a ask, r *Row) {
	k, t := a.key, a.topic
	switch {
	case !t.paused || t.byOperator || t.trial != nil || !b.hasPlace(t):
	case k.under != nil || k.heads.len() > 0 || !k.isPen() && k.parked.lowest() != a.id:
	case r.Topic != t.name: // its first row is on another topic than when it was blocked
		b.goesOn(k)
	case k.isPen():
		b.comesBack(k, r)
		b.letPass(l, nil, r, t)
	default:
		b.comesBack(k, r)
		b.letPass(l, k, r, t)
	}
}

// strayed takes a row that was unknown, unless it is known by now: a read may have brought it before it was asked for.
func (b *Board) strayed(l *lane, r *Row) {
	if l.knows(r.ID) || l.shadow != nil && r.ID >= l.shadow.low {
		return
	}
	if b.accept(l, r, false) {
		b.report(r.about(StrayFound))
	}
}

// Due returns when Tick is wanted next, and when a read is, unasked; zero = not. Either may have passed.
func (b *Board) Due() (tick, read time.Time) {
	sooner := func(at *time.Time, t time.Time) {
		if at.IsZero() || t.Before(*at) {
			*at = t
		}
	}
	if c := b.young.front; c != nil {
		sooner(&tick, c.Started.Add(b.cfg.SlowAfter))
		if b.cfg.PublishTimeout > 0 {
			sooner(&tick, c.Started.Add(b.cfg.PublishTimeout))
		}
	}
	if c := b.slow.front; c != nil && b.cfg.PublishTimeout > 0 {
		sooner(&tick, c.Started.Add(b.cfg.PublishTimeout))
	}
	for _, t := range b.troubled {
		if b.excess(t) != nil {
			sooner(&tick, b.now)
		}
		if t.paused || t.jammed {
			sooner(&tick, t.repeat)
		}
		switch {
		case !t.wantsTrial() || b.stopped:
		case !b.hasLane():
			sooner(&tick, t.until)
		case b.hasPlace(t) || !b.isWaitedFor(t):
			sooner(&read, t.until)
		}
	}
	if b.stopped {
		return tick, time.Time{}
	}
	if b.retryMoved {
		b.retryMoved, b.nextRetry = false, time.Time{}
		for _, l := range b.lanes {
			if l != nil && len(l.retries) > 0 {
				sooner(&b.nextRetry, l.retries[0].due)
			}
		}
	}
	if !b.nextRetry.IsZero() && b.hasSomeRoom() {
		sooner(&read, b.nextRetry)
	}
	return tick, read
}
