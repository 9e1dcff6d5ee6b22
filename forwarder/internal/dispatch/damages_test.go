package dispatch

import (
	"maps"
	"slices"
)

// The model must detect the damage done by these methods.

// ForgetNow forgets settled rows immediately.
func (b *Dispatcher) ForgetNow() { b.forgetSettled() }

// ForgetWaits forgets which keys wait for topics.
func (b *Dispatcher) ForgetWaits() {
	for _, l := range b.lanes {
		if l != nil {
			b.waiting -= len(l.waits)
			l.waits = nil
		}
	}
}

// ForgetLows treats all deferred rows as caught up.
func (b *Dispatcher) ForgetLows() {
	for _, l := range b.lanes {
		if l == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(l.keys)) {
			if k := l.keys[name]; k.low != 0 && !k.inRead {
				k.low = 0
				l.deferredKeys--
				b.unlist(k)
				b.forgetIdleKey(k)
			}
		}
		for _, t := range b.degraded {
			if t.lowIn(l) != 0 {
				t.setLow(l, 0)
				b.endTopicWaits(t, l)
			}
		}
	}
}

// RaiseLows raises the lowest ids of deferred rows too far.
func (b *Dispatcher) RaiseLows() {
	for _, l := range b.lanes {
		if l == nil {
			continue
		}
		for _, k := range l.keys {
			if k.low != 0 && !k.inRead {
				k.low++
			}
		}
		for _, t := range b.degraded {
			if low := t.lowIn(l); low != 0 {
				t.setLow(l, low+1)
			}
		}
	}
}

// HasLows reports whether anything is deferred in the lane of an assignment.
func (b *Dispatcher) HasLows(t Assignment) bool {
	l := b.lane(t)
	return l != nil && (l.deferredKeys > 0 ||
		slices.ContainsFunc(b.degraded, func(t *topic) bool { return t.lowIn(l) != 0 }))
}

// ForgetBlocked unblocks rows whose failure is not settled yet.
func (b *Dispatcher) ForgetBlocked() {
	for _, l := range b.lanes {
		if l != nil {
			for _, id := range slices.Sorted(maps.Keys(l.blocked)) {
				if h := l.blocked[id]; h != nil && h.index < 0 && h.key != nil && h.key.inFlight == nil {
					b.removeBlocked(l, h)
				}
			}
		}
	}
}

// AskOther changes which rows are fetched as probes. Call it after ReadBegins, and TakeAnyway before RowsRead.
func (a *Request) AskOther(other func(key string, id int64) int64) {
	for i, fetch := range a.fetches {
		if fetch.reason == forProbe && fetch.name != "" {
			a.fetches[i].id = other(fetch.name, fetch.id)
			a.IDs[i] = a.fetches[i].id
		}
	}
}

// TakeAnyway accepts a probe although it is not the first of its key.
func (b *Dispatcher) TakeAnyway(a Request, r Read) {
	for _, fetch := range a.fetches {
		f, found := r.ByID[fetch.id]
		l, t := b.activeLane(fetch.assignment), fetch.topic
		if l == nil || fetch.reason != forProbe || fetch.name == "" || !found || f.Dead || l.knows(fetch.id) ||
			f.Row.Topic != t.name {
			continue
		}
		if k := l.keyOf(fetch.name); k.isIdle(fetch.id) && t.paused && t.probe == nil && !t.byOperator && b.hasSlot(t) {
			b.bypassKey(l, f.Row, t)
		} else {
			b.forgetIdleKey(k)
		}
	}
}

// Revive makes a call that returned or hangs return, or time out, once more.
func (c *Call) Revive(timesOut bool) {
	c.state = hung
	if timesOut {
		c.state = expired
	}
}
