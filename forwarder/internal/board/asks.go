package board

import (
	"slices"
	"time"
)

// ask is a row to read by id, and why.
type ask struct {
	why   purpose
	term  Term
	id    int64
	head  *head  // retry
	name  string // trial: the name of its key
	topic *topic // topic that the row is to be a trial of
}

type purpose uint8

const (
	forRetry purpose = iota // it failed, and another attempt is due
	forTrial                // it tests whether its topic works again
	forStray                // it is pending, and unknown to the board
)

func (a *Asks) add(ask ask) {
	a.asks = append(a.asks, ask)
	a.IDs = append(a.IDs, ask.id)
}

const mostStrays = 1000 // waiting for a read

// wantsTrial reports whether a topic must be tested when its pause is over.
func (t *topic) wantsTrial() bool { return t.paused && !t.byOperator && t.trial == nil && !t.asked }

// mayTry reports whether a trial of a paused topic may be asked for, or none is needed because nothing waits for the
// topic.
func (b *Board) mayTry(t *topic) bool {
	return t.wantsTrial() && !b.now.Before(t.until) && (b.hasPlace(t) || !b.isWaitedFor(t))
}

// isWaitedFor reports whether keys or late heads wait for a topic.
func (b *Board) isWaitedFor(t *topic) bool { return t.lanes != 0 || b.hasLate(t) }

func (b *Board) askTrials(a *Asks) {
	for _, t := range b.troubled {
		if !b.mayTry(t) {
			continue
		}
		if p, ok := b.trialOf(t); ok && b.hasPlace(t) {
			t.asked = true
			a.add(ask{why: forTrial, term: p.term, id: p.id, name: p.name, topic: t})
		} else {
			b.reopen(t)
		}
	}
}

// Stray is a row that the sweep found pending below the cursor.
type Stray struct {
	ID         int64
	Key, Topic string
}

// Strays receives the rows that the sweep found. Unknown rows are read by id.
func (b *Board) Strays(t Term, rows []Stray) {
	l := b.open(t)
	if l == nil {
		return
	}
	for _, r := range rows {
		if !l.knows(r.ID) && !b.isDeferred(l, r.ID, r.Key, r.Topic) && len(b.strays) < mostStrays {
			b.strays = append(b.strays, stray{t, r.ID})
			b.effects.Read = true
		}
	}
}

// isDeferred reports whether a row will be read again.
func (b *Board) isDeferred(l *lane, id int64, key, topic string) bool {
	t := b.topics[topic]
	return t != nil && t.isDeferred(l, id) || key != "" && l.covers(key, id)
}

// stray is a row that is pending and unknown to the board.
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

// answered handles a row that was asked for, or its absence. looked means that requeued rows are known.
func (b *Board) answered(a ask, r Read, looked bool) {
	l := b.open(a.term)
	if l == nil {
		return
	}
	if f, found := r.ByID[a.id]; a.why == forRetry {
		b.retried(l, a, f, found, looked)
	} else {
		b.tried(l, a, f, found, looked)
	}
}

// tried handles the message that is to test whether a topic works again.
func (b *Board) tried(l *lane, a ask, f Found, found, looked bool) {
	t, r := a.topic, f.Row
	switch {
	case l.knows(a.id): // it continued in the meantime
	case !found, r.Topic != t.name:
		t.probes = slices.DeleteFunc(t.probes, func(p probe) bool { return p.id == a.id })
		b.goesOn(l, a.name)
	case f.Dead: // an operator marked it dead while it waited; now it blocks its key
		if a.name != "" {
			b.addHead(l, a.name, a.id, t.name, b.now.Add(never))
		}
	case a.name != "" && r.Attempts > 0: // an operator requeued it while it waited, perhaps with lower ones
		b.sentAgain(l, r)
	case !looked: // a requeued message may come before it: the next read sees more
		b.wantDue = true
	case !t.paused || t.byOperator || t.trial != nil || !b.hasPlace(t) || !b.mayBeTrial(t, probe{a.term, a.id, a.name}):
	case a.name == "":
		b.letPass(l, nil, r, t)
	default:
		b.letPass(l, l.keyOf(a.name), r, t)
	}
}

// strayed accepts an unknown row, unless it has become known: a read may have returned it before it was asked for.
func (b *Board) strayed(l *lane, r *Row) {
	if !l.knows(r.ID) && b.accept(l, r, false) {
		b.report(r.about(StrayFound))
	}
}

// Due returns when Tick must be called next, and when to read without other reason; zero = never. Both may be in the
// past.
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
