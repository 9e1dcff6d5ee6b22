package dispatch

import (
	"slices"
	"time"
)

// fetch is a row to read by id, and why.
type fetch struct {
	candidate
	reason  fetchReason
	blocked *blockedRow // retry
	topic   *topic      // topic that the row is to be a probe of
}

type fetchReason uint8

const (
	forRetry  fetchReason = iota // it failed, and another attempt is due
	forProbe                     // it tests whether its topic works again
	forOrphan                    // it is pending, and unknown to the dispatcher
)

func (a *Request) add(f fetch) {
	a.fetches = append(a.fetches, f)
	a.IDs = append(a.IDs, f.id)
}

const maxOrphans = 1000 // waiting for a read

// wantsProbe reports whether a topic must be tested when its pause is over.
func (t *topic) wantsProbe() bool {
	return t.paused && !t.byOperator && t.probe == nil && !t.probeInRead
}

// probeIsDue reports whether a probe of a paused topic may be asked for, or is not needed because nothing waits for it.
func (d *Dispatcher) probeIsDue(t *topic) bool {
	return t.wantsProbe() && !d.now.Before(t.until) && (d.hasSlot(t) || !d.isWaitedFor(t))
}

// isWaitedFor reports whether keys or overdue blocked rows wait for a topic.
func (d *Dispatcher) isWaitedFor(t *topic) bool { return t.deferredIn != 0 || d.isOverdue(t) }

// requestProbes requests the probes that are due. retries means that a blocked row may be one.
func (d *Dispatcher) requestProbes(a *Request, retries bool) {
	for _, t := range d.degraded {
		if !d.probeIsDue(t) {
			continue
		}
		if p, ok := d.nextProbe(t); ok && d.hasSlot(t) {
			t.probeInRead = true
			a.add(fetch{candidate: p, reason: forProbe, topic: t})
		} else if !retries || !d.requestRetryAsProbe(a, t) {
			d.reopen(t)
		}
	}
}

// Orphan is a row that the sweep found pending below the cursor.
type Orphan struct {
	ID         int64
	Key, Topic string
}

// Orphans receives the rows that the sweep found. Unknown rows are read by id.
func (d *Dispatcher) Orphans(t Assignment, rows []Orphan) {
	l := d.activeLane(t)
	if l == nil {
		return
	}
	for _, r := range rows {
		if !l.knows(r.ID) && !d.isDeferred(l, r.ID, r.Key, r.Topic) && len(d.orphans) < maxOrphans {
			d.orphans = append(d.orphans, fetch{candidate: candidate{assignment: t, id: r.ID}, reason: forOrphan})
			d.effects.Read = true
		}
	}
}

// isDeferred reports whether a row will be read again.
func (d *Dispatcher) isDeferred(l *lane, id int64, key, topic string) bool {
	t := d.topics[topic]
	return t != nil && t.isDeferred(l, id) || key != "" && l.covers(key, id)
}

func (d *Dispatcher) requestOrphans(a *Request) {
	for _, f := range d.orphans {
		a.add(f)
	}
	d.orphans = d.orphans[:0]
}

// applyFetch handles a row that was requested by id, or its absence. requeuesKnown means that no requeued row that may
// have to go first is unknown.
func (d *Dispatcher) applyFetch(a fetch, r Read, requeuesKnown bool) {
	l := d.activeLane(a.assignment)
	if l == nil {
		return
	}
	if a.reason == forRetry {
		d.retryRead(l, a, r, requeuesKnown)
	} else {
		d.probeRead(l, a, r, requeuesKnown)
	}
}

// probeRead handles the message that is to test whether a topic works again.
func (d *Dispatcher) probeRead(l *lane, a fetch, read Read, requeuesKnown bool) {
	f, found := read.ByID[a.id]
	t, r := a.topic, f.Row
	switch {
	case l.knows(a.id): // it continued in the meantime
	case !found, f.Dead && a.name == "", r.Topic != t.name:
		t.candidates = slices.DeleteFunc(t.candidates, func(p candidate) bool { return p.id == a.id })
		d.endTopicWait(l, a.name)
	case f.Dead: // an operator marked it dead while it waited; now it blocks its key
		if a.name != "" {
			d.addBlocked(l, a.name, a.id, t.name, d.now.Add(never))
		}
	case a.name != "" && r.Attempts > 0: // an operator requeued it while it waited, perhaps with lower ones
		d.blockRequeued(l, r)
	case !requeuesKnown: // a requeued message may come before it: the next read sees more
		d.readDue(dueOfOpen)
	case !t.paused || t.byOperator || t.probe != nil || !d.hasSlot(t) || !d.mayProbe(t, a.candidate):
	default:
		r.call.due = a.due
		d.bypassKey(l, r, t)
	}
}

// addOrphan accepts an unknown row, unless a read has returned it since. A row that was tried is not reported: it was
// known when the sweep read it, and has failed since.
func (d *Dispatcher) addOrphan(l *lane, r *Row) {
	if !l.knows(r.ID) && d.accept(l, r, false) && r.Attempts == 0 {
		d.report(r.about(OrphanFound))
	}
}

// NextTimes returns when Tick must be called next, and when to read without other reason; zero = never. Both may be in
// the past.
func (d *Dispatcher) NextTimes() (tick, read time.Time) {
	sooner := func(at *time.Time, t time.Time) {
		if at.IsZero() || t.Before(*at) {
			*at = t
		}
	}
	if c := d.young.front; c != nil {
		sooner(&tick, c.Started.Add(d.cfg.SlowAfter))
		if d.cfg.PublishTimeout > 0 {
			sooner(&tick, c.Started.Add(d.cfg.PublishTimeout))
		}
	}
	if c := d.slow.front; c != nil && d.cfg.PublishTimeout > 0 {
		sooner(&tick, c.Started.Add(d.cfg.PublishTimeout))
	}
	for _, t := range d.degraded {
		if d.excess(t) != nil {
			sooner(&tick, d.now)
		}
		if t.paused || t.exhausted {
			sooner(&tick, t.reportAgainAt)
		}
		switch {
		case !t.wantsProbe() || d.stopped:
		case !d.hasLane():
			sooner(&tick, t.until)
		case d.hasSlot(t) || !d.isWaitedFor(t):
			sooner(&read, t.until)
		}
	}
	if d.stopped {
		return tick, time.Time{}
	}
	if d.retryMoved {
		d.retryMoved, d.nextRetry = false, time.Time{}
		for _, l := range d.lanes {
			if l != nil && len(l.retries) > 0 {
				sooner(&d.nextRetry, l.retries[0].due)
			}
		}
	}
	if !d.nextRetry.IsZero() && d.hasSomeRoom() {
		sooner(&read, d.nextRetry)
	}
	return tick, read
}
