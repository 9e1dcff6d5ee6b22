package board

import "time"

// callState is the state of a call, or of a row before its call.
type callState uint8

const (
	idle     callState = iota // the row waits in its chain
	pending                   // on a queue of its topic
	young                     // in flight
	slow                      // for longer than SlowAfter
	expired                   // for longer than PublishTimeout: TimedOut must follow
	hung                      // timed out, but has not returned
	returned                  //
	dropped                   // the row was put back, or its term is over
)

// manyCalls times Concurrency is the limit for calls of any age.
const manyCalls = 8

// Next starts a call, or returns nil if none may start now. The caller publishes the row and then calls Returned. tag
// is stored in the call.
func (b *Board) Next(now time.Time, tag any) *Call {
	b.now = now
	t := b.turns.front
	if t == nil || b.stopped || b.freeSlots() == 0 {
		return nil
	}
	c := t.first()
	if b.turns.n > 1 {
		b.turns.remove(t)
		b.turns.push(t)
	}
	l := b.lanes[c.Row.Term.Lane]
	if k := c.key; k != nil {
		if !c.pass {
			k.first, c.nextOfKey = c.nextOfKey, nil
			if k.n--; k.n == 0 {
				k.last = nil
			}
		}
		k.inFlight = c.Row
	}
	c.state, c.Started, c.Tag = young, now, tag
	b.young.push(c)
	b.calls++
	t.calls++
	l.inFlight++
	l.moves(c.Row, -1)
	b.update(t)
	return c
}

// freeSlots returns how many more calls may start.
func (b *Board) freeSlots() int {
	return max(0, min(b.cfg.Concurrency-b.young.n, manyCalls*b.cfg.Concurrency-b.calls))
}

// Returned handles the result of a call, even a late one. Further results of the same call are ignored.
func (b *Board) Returned(now time.Time, c *Call, r Result) {
	b.now = now
	t := c.topic
	switch c.state {
	case young:
		b.young.remove(c)
	case slow:
		b.slow.remove(c)
		t.old--
	case expired:
		b.old.remove(c)
		t.old--
	case hung:
		b.old.remove(c)
		t.old--
		t.hung--
	default:
		return
	}
	late := c.state == hung
	c.state = returned
	b.calls--
	t.calls--
	if t.calls == b.cfg.Concurrency-1 && t.wantsProbe() { // there is a slot for it now
		b.retryOverdue(t)
	}
	if t.jammed && t.hung < b.cfg.Concurrency {
		t.jammed = false
		if !t.paused {
			b.report(Report{Kind: TopicResumed, Topic: t.name})
		}
	}
	if !late {
		b.leave(c)
	}
	b.update(t)
	switch {
	case !late:
		b.judge(c, r)
	case r.Verdict == OK:
		b.succeeded(c, true) // the failure was already charged
	}
	b.forgetTopic(t)
}

// Expired reports whether TimedOut must still be called for a call.
func (c *Call) Expired() bool { return c.state == expired }

// InFlight returns all calls that have not returned, including hung ones.
func (b *Board) InFlight() []*Call {
	list := make([]*Call, 0, b.calls)
	for _, first := range []*Call{b.young.front, b.slow.front, b.old.front} {
		for c := first; c != nil; c = c.next {
			list = append(list, c)
		}
	}
	return list
}

// TimedOut handles the result of a call that Effects.Expired listed. It is ignored if the call returned in the
// meantime; otherwise the call is hung.
func (b *Board) TimedOut(now time.Time, c *Call, r Result) {
	b.now = now
	if c.state != expired {
		return
	}
	c.state = hung
	t := c.topic
	if t.hung++; t.hung == b.cfg.Concurrency {
		t.jammed, t.repeat = true, now.Add(repeatEvery)
		b.degrade(t)
		b.report(Report{Kind: TopicJammed, Topic: t.name, Failures: t.hung, Err: r.Err})
	}
	b.leave(c)
	b.judge(c, r)
}

// leave removes a row from memory whose call is over, or hung.
func (b *Board) leave(c *Call) {
	b.rows--
	b.bytes -= c.Row.size()
	if l := b.lane(c.Row.Term); l != nil {
		l.inFlight--
	}
	if c.key != nil && c.key.inFlight == c.Row {
		c.key.inFlight = nil
	}
}

// Tick marks calls as slow or expired, defers the rows that closed topics have in memory, a few at a time, and repeats
// reports.
func (b *Board) Tick(now time.Time) {
	b.now = now
	for c := b.young.front; c != nil && now.Sub(c.Started) >= b.cfg.SlowAfter; c = b.young.front {
		b.young.remove(c)
		c.state = slow
		c.topic.old++
		b.slow.push(c)
		b.update(c.topic)
	}
	for _, calls := range []*list[Call, *Call]{&b.slow, &b.young} {
		for c := calls.front; c != nil && b.cfg.PublishTimeout > 0 &&
			now.Sub(c.Started) >= b.cfg.PublishTimeout; c = calls.front {
			calls.remove(c)
			if c.state == young {
				c.topic.old++
			}
			c.state = expired
			b.old.push(c)
			b.effects.Expired = append(b.effects.Expired, c)
			b.update(c.topic)
		}
	}
	b.deferExcess()
	b.reopenIdle()
	for _, t := range b.degraded {
		if (t.paused || t.jammed) && !now.Before(t.repeat) {
			t.repeat = now.Add(repeatEvery)
			if t.paused {
				b.report(Report{
					Kind: TopicPaused, Topic: t.name, Failures: t.failures, Wait: max(0, t.until.Sub(now)), Repeated: true,
					Guessed: t.guessed, Err: t.err,
				})
			}
			if t.jammed {
				b.report(Report{Kind: TopicJammed, Topic: t.name, Failures: t.hung, Repeated: true})
			}
		}
	}
}
