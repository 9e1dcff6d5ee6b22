package board

import (
	"slices"
	"time"
)

// fetch is a row to read by id, and why.
type fetch struct {
	why   purpose
	term  Term
	id    int64
	head  *head  // retry
	name  string // probe: the name of its key
	topic *topic // topic that the row is to be a probe of
}

type purpose uint8

const (
	forRetry  purpose = iota // it failed, and another attempt is due
	forProbe                 // it tests whether its topic works again
	forOrphan                // it is pending, and unknown to the board
)

func (a *Request) add(f fetch) {
	a.fetches = append(a.fetches, f)
	a.IDs = append(a.IDs, f.id)
}

const mostOrphans = 1000 // waiting for a read

// wantsProbe reports whether a topic must be tested when its pause is over.
func (t *topic) wantsProbe() bool {
	return t.paused && !t.byOperator && t.probe == nil && !t.probeInRead
}

// probeIsDue reports whether a probe of a paused topic may be asked for, or is not needed because nothing waits for it.
func (b *Board) probeIsDue(t *topic) bool {
	return t.wantsProbe() && !b.now.Before(t.until) && (b.hasSlot(t) || !b.isWaitedFor(t))
}

// isWaitedFor reports whether keys or overdue heads wait for a topic.
func (b *Board) isWaitedFor(t *topic) bool { return t.lanes != 0 || b.isOverdue(t) }

func (b *Board) fetchProbes(a *Request) {
	for _, t := range b.degraded {
		if !b.probeIsDue(t) {
			continue
		}
		if p, ok := b.nextProbe(t); ok && b.hasSlot(t) {
			t.probeInRead = true
			a.add(fetch{why: forProbe, term: p.term, id: p.id, name: p.name, topic: t})
		} else {
			b.reopen(t)
		}
	}
}

// Orphan is a row that the sweep found pending below the cursor.
type Orphan struct {
	ID         int64
	Key, Topic string
}

// Orphans receives the rows that the sweep found. Unknown rows are read by id.
func (b *Board) Orphans(t Term, rows []Orphan) {
	l := b.open(t)
	if l == nil {
		return
	}
	for _, r := range rows {
		if !l.knows(r.ID) && !b.isDeferred(l, r.ID, r.Key, r.Topic) && len(b.orphans) < mostOrphans {
			b.orphans = append(b.orphans, orphan{t, r.ID})
			b.effects.Read = true
		}
	}
}

// isDeferred reports whether a row will be read again.
func (b *Board) isDeferred(l *lane, id int64, key, topic string) bool {
	t := b.topics[topic]
	return t != nil && t.isDeferred(l, id) || key != "" && l.covers(key, id)
}

// orphan is a row that is pending and unknown to the board.
type orphan struct {
	term Term
	id   int64
}

func (b *Board) fetchOrphans(a *Request) {
	for _, s := range b.orphans {
		a.add(fetch{why: forOrphan, term: s.term, id: s.id})
	}
	b.orphans = b.orphans[:0]
}

// fetched handles a row that was asked for, or its absence. looked means that requeued rows are known.
func (b *Board) fetched(a fetch, r Read, looked bool) {
	l := b.open(a.term)
	if l == nil {
		return
	}
	if f, found := r.ByID[a.id]; a.why == forRetry {
		b.retried(l, a, f, found, looked)
	} else {
		b.probed(l, a, f, found, looked)
	}
}

// probed handles the message that is to test whether a topic works again.
func (b *Board) probed(l *lane, a fetch, f Found, found, looked bool) {
	t, r := a.topic, f.Row
	switch {
	case l.knows(a.id): // it continued in the meantime
	case !found, r.Topic != t.name:
		t.candidates = slices.DeleteFunc(t.candidates, func(p candidate) bool { return p.id == a.id })
		b.unblock(l, a.name)
	case f.Dead: // an operator marked it dead while it waited; now it blocks its key
		if a.name != "" {
			b.addHead(l, a.name, a.id, t.name, b.now.Add(never))
		}
	case a.name != "" && r.Attempts > 0: // an operator requeued it while it waited, perhaps with lower ones
		b.sentAgain(l, r)
	case !looked: // a requeued message may come before it: the next read sees more
		b.wantDue = true
	case !t.paused || t.byOperator || t.probe != nil || !b.hasSlot(t) || !b.mayProbe(t, candidate{a.term, a.id, a.name}):
	case a.name == "":
		b.letPass(l, nil, r, t)
	default:
		b.letPass(l, l.keyOf(a.name), r, t)
	}
}

// addOrphan accepts an unknown row, unless a read has returned it since.
func (b *Board) addOrphan(l *lane, r *Row) {
	if !l.knows(r.ID) && b.accept(l, r, false) {
		b.report(r.about(OrphanFound))
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
	for _, t := range b.degraded {
		if b.excess(t) != nil {
			sooner(&tick, b.now)
		}
		if t.paused || t.jammed {
			sooner(&tick, t.repeat)
		}
		switch {
		case !t.wantsProbe() || b.stopped:
		case !b.hasLane():
			sooner(&tick, t.until)
		case b.hasSlot(t) || !b.isWaitedFor(t):
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
