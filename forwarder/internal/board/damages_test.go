package board

import (
	"maps"
	"slices"
)

// What is damaged here, the model must find.

// ForgetNow forgets at once what was settled.
func (b *Board) ForgetNow() { b.forget() }

// ClearShadows clears the shadows without a rewind.
func (b *Board) ClearShadows() {
	for _, l := range b.lanes {
		if l != nil && l.shadow != nil {
			clear(l.shadow.bits)
		}
	}
}

// RaiseShadows makes the lowest ids of the shadows too high.
func (b *Board) RaiseShadows() {
	for _, l := range b.lanes {
		if l != nil && l.shadow != nil {
			l.shadow.low++
		}
	}
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

// AskFromTheTop changes what was asked for to the highest parked ids of each key: of trials, or of what is unparked.
// To be called after ReadBegins, and TakeAnyway before RowsRead.
func (b *Board) AskFromTheTop(a *Asks, trials bool) {
	taken := map[*key]int{}
	for i, ask := range a.asks {
		if ask.key == nil || ask.key.isPen() || (ask.why == forTrial) != trials {
			continue
		}
		all := ask.key.parked.all()
		taken[ask.key]++
		a.asks[i].id = all[len(all)-taken[ask.key]]
		a.IDs[i] = a.asks[i].id
	}
}

// TakeAnyway takes what was asked for although it is not the lowest of its key.
func (b *Board) TakeAnyway(a Asks, r Read, trials bool) {
	for _, ask := range a.asks {
		f, found := r.ByID[ask.id]
		l, k := b.open(ask.term), ask.key
		if l == nil || k == nil || k.isPen() || !found || f.Dead || l.known[ask.id] != nil || l.heads[ask.id] != nil {
			continue
		}
		if _, waits := slices.BinarySearch(k.parked.all(), ask.id); !waits {
			continue
		}
		t := b.topicOf(f.Row.Topic)
		switch {
		case trials && ask.why == forTrial && ask.topic == t && t.paused && t.trial == nil && k.under == nil &&
			k.heads.len() == 0:
			b.unpark(k, ask.id)
			b.letPass(l, k, f.Row, t)
		case !trials && ask.why == forUnpark && !k.blocked() && int(k.n) < b.cfg.Chain:
			b.stopWaiting(k)
			b.unpark(k, ask.id)
			b.join(k, f.Row, false)
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
