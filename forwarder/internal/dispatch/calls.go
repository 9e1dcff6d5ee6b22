package dispatch

import "time"

// callState is the state of a call, or of a row before its call.
type callState uint8

const (
	idle     callState = iota // the row waits in its queue
	pending                   // on a queue of its topic
	young                     // in flight
	slow                      // for longer than SlowAfter
	expired                   // for longer than PublishTimeout: TimedOut must follow
	hung                      // timed out, but has not returned
	returned                  //
	dropped                   // the row was put back, or its assignment is over
)

// callsFactor times Concurrency is the limit for calls of any age.
const callsFactor = 8

// Next starts a call, or returns nil if none may start now. The caller publishes the row and then calls Returned. tag
// is stored in the call.
func (d *Dispatcher) Next(now time.Time, tag any) *Call {
	d.now = now
	t := d.turns.front
	if t == nil || d.stopped || d.freeSlots() == 0 {
		return nil
	}
	c := t.first()
	if d.turns.n > 1 {
		d.turns.remove(t)
		d.turns.push(t)
	}
	l := d.lanes[c.Row.Assignment.Lane]
	if k := c.key; k != nil {
		if !c.bypass {
			k.first, c.nextOfKey = c.nextOfKey, nil
			if k.n--; k.n == 0 {
				k.last = nil
			}
		}
		k.inFlight = c.Row
	}
	c.state, c.Started, c.Tag = young, now, tag
	d.young.push(c)
	t.calls++
	l.inFlight++
	t.count(c.Row, -1)
	d.update(t)
	return c
}

// calls returns how many calls of any age there are.
func (d *Dispatcher) calls() int { return d.young.n + d.slow.n + d.old.n }

// freeSlots returns how many more calls may start.
func (d *Dispatcher) freeSlots() int {
	return max(0, min(d.cfg.Concurrency-d.young.n, callsFactor*d.cfg.Concurrency-d.calls()))
}

// Returned handles the result of a call, even a late one. Further results of the same call are ignored.
func (d *Dispatcher) Returned(now time.Time, c *Call, r Result) {
	d.now = now
	t := c.topic
	switch c.state {
	case young:
		d.young.remove(c)
	case slow:
		d.slow.remove(c)
		t.old--
	case expired:
		d.old.remove(c)
		t.old--
	case hung:
		d.old.remove(c)
		t.old--
		t.hung--
	default:
		return
	}
	late := c.state == hung
	c.state = returned
	t.calls--
	if t.calls == d.cfg.Concurrency-1 && t.wantsProbe() { // there is a slot for it now
		d.retryOverdue(t)
	}
	if t.exhausted && t.hung < d.cfg.Concurrency {
		t.exhausted = false
		if !t.paused {
			d.report(Report{Kind: TopicResumed, Topic: t.name})
		}
	}
	if !late {
		d.endCall(c)
	}
	d.update(t)
	switch {
	case !late:
		d.applyResult(c, r)
	case r.Verdict == OK:
		d.succeeded(c, true) // the failure was already charged
	}
	d.forgetTopic(t)
}

// Expired reports whether TimedOut must still be called for a call.
func (c *Call) Expired() bool { return c.state == expired }

// InFlight returns all calls that have not returned, including hung ones.
func (d *Dispatcher) InFlight() []*Call {
	list := make([]*Call, 0, d.calls())
	for _, first := range []*Call{d.young.front, d.slow.front, d.old.front} {
		for c := first; c != nil; c = c.next {
			list = append(list, c)
		}
	}
	return list
}

// TimedOut handles the result of a call that Effects.Expired listed. It is ignored if the call returned in the
// meantime; otherwise the call is hung.
func (d *Dispatcher) TimedOut(now time.Time, c *Call, r Result) {
	d.now = now
	if c.state != expired {
		return
	}
	c.state = hung
	t := c.topic
	if t.hung++; t.hung == d.cfg.Concurrency {
		t.exhausted, t.reportAgainAt = true, now.Add(reportInterval)
		d.degrade(t)
		d.report(Report{Kind: TopicExhausted, Topic: t.name, Failures: t.hung, Err: r.Err})
	}
	d.endCall(c)
	d.applyResult(c, r)
}

// endCall removes a row from memory whose call is over, or hung.
func (d *Dispatcher) endCall(c *Call) {
	d.rows--
	d.bytes -= c.Row.size()
	if l := d.lane(c.Row.Assignment); l != nil {
		l.inFlight--
	}
	if c.key != nil && c.key.inFlight == c.Row {
		c.key.inFlight = nil
	}
}

// Tick marks calls as slow or expired, defers the rows that closed topics have in memory, a few at a time, and repeats
// reports.
func (d *Dispatcher) Tick(now time.Time) {
	d.now = now
	for c := d.young.front; c != nil && now.Sub(c.Started) >= d.cfg.SlowAfter; c = d.young.front {
		d.young.remove(c)
		c.state = slow
		c.topic.old++
		d.slow.push(c)
		d.update(c.topic)
	}
	for _, calls := range []*list[Call, *Call]{&d.slow, &d.young} {
		for c := calls.front; c != nil && d.cfg.PublishTimeout > 0 &&
			now.Sub(c.Started) >= d.cfg.PublishTimeout; c = calls.front {
			calls.remove(c)
			if c.state == young {
				c.topic.old++
			}
			c.state = expired
			d.old.push(c)
			d.effects.Expired = append(d.effects.Expired, c)
			d.update(c.topic)
		}
	}
	d.deferExcess()
	d.reopenIdle()
	for _, t := range d.degraded {
		if (t.paused || t.exhausted) && !now.Before(t.reportAgainAt) {
			t.reportAgainAt = now.Add(reportInterval)
			if t.paused {
				d.report(Report{
					Kind: TopicPaused, Topic: t.name, Failures: t.failures, Wait: max(0, t.until.Sub(now)), Repeated: true,
					Unclassified: t.unclassified, Err: t.err,
				})
			}
			if t.exhausted {
				d.report(Report{Kind: TopicExhausted, Topic: t.name, Failures: t.hung, Repeated: true})
			}
		}
	}
}
