package board

import (
	"maps"
	"slices"
)

// What is damaged here, the model must find.

// ForgetNow forgets at once what was settled.
func (b *Board) ForgetNow() { b.forget() }

// ForgetWaits forgets which keys wait for topics.
func (b *Board) ForgetWaits() {
	for _, l := range b.lanes {
		if l != nil {
			b.waiting -= len(l.waits)
			l.waits = nil
		}
	}
}

// ForgetLows takes all that was deferred for caught up.
func (b *Board) ForgetLows() {
	for _, l := range b.lanes {
		if l == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(l.keys)) {
			if k := l.keys[name]; k.low != 0 && !k.asked {
				k.low = 0
				l.lows--
				b.unlist(k)
				b.tidy(k)
			}
		}
		for _, t := range b.troubled {
			if t.lowIn(l) != 0 {
				t.setLow(l, 0)
				b.forgetWaits(t, l)
			}
		}
	}
}

// RaiseLows makes the lowest ids of what is deferred too high.
func (b *Board) RaiseLows() {
	for _, l := range b.lanes {
		if l == nil {
			continue
		}
		for _, k := range l.keys {
			if k.low != 0 && !k.asked {
				k.low++
			}
		}
		for _, t := range b.troubled {
			if low := t.lowIn(l); low != 0 {
				t.setLow(l, low+1)
			}
		}
	}
}

// HasLows says whether anything is deferred in the lane of a term.
func (b *Board) HasLows(t Term) bool {
	l := b.lane(t)
	return l != nil && (l.lows > 0 || slices.ContainsFunc(b.troubled, func(t *topic) bool { return t.lowIn(l) != 0 }))
}

// ForgetHeads lets go of heads whose failure is not settled yet.
func (b *Board) ForgetHeads() {
	for _, l := range b.lanes {
		if l != nil {
			for _, id := range slices.Sorted(maps.Keys(l.heads)) {
				if h := l.heads[id]; h != nil && h.place < 0 && h.key != nil && h.key.under == nil {
					b.removeHead(l, h)
				}
			}
		}
	}
}

// AskOther changes which rows are to be the trials of their topics. To be called after ReadBegins, and TakeAnyway before
// RowsRead.
func (a *Asks) AskOther(other func(key string, id int64) int64) {
	for i, ask := range a.asks {
		if ask.why == forTrial && ask.name != "" {
			a.asks[i].id = other(ask.name, ask.id)
			a.IDs[i] = a.asks[i].id
		}
	}
}

// TakeAnyway takes a trial although it is not the first of its key.
func (b *Board) TakeAnyway(a Asks, r Read) {
	for _, ask := range a.asks {
		f, found := r.ByID[ask.id]
		l, t := b.open(ask.term), ask.topic
		if l == nil || ask.why != forTrial || ask.name == "" || !found || f.Dead || l.knows(ask.id) || f.Row.Topic != t.name {
			continue
		}
		if k := l.keyOf(ask.name); k.isIdle(ask.id) && t.paused && t.trial == nil && !t.byOperator && b.hasPlace(t) {
			b.letPass(l, k, f.Row, t)
		} else {
			b.tidy(k)
		}
	}
}

// Revive lets a call that returned or is hung return, or time out, once more.
func (c *Call) Revive(timesOut bool) {
	c.state = hung
	if timesOut {
		c.state = expired
	}
}
