package dispatch

// Sizes counts the contents of memory. Blocked includes Keyless.
type Sizes struct{ Topics, Degraded, Keys, Known, Blocked, Keyless, Lows int }

// Quiet reports whether nothing is left to do.
func (b *Dispatcher) Quiet() bool {
	quiet, paused := b.QuietButPaused()
	return quiet && len(paused) == 0
}

func (b *Dispatcher) Sizes() Sizes {
	s := Sizes{Topics: len(b.topics), Degraded: len(b.degraded), Keyless: b.keyless}
	for _, l := range b.lanes {
		if l != nil {
			s.Keys += len(l.keys)
			s.Known += len(l.known)
			s.Blocked += len(l.blocked)
			s.Lows += l.deferredKeys
		}
	}
	return s
}

// Knows reports whether an id needs no second read: in memory, settled since the last read began, or a blocked row.
func (b *Dispatcher) Knows(t Assignment, id int64) bool {
	l := b.lane(t)
	if l == nil {
		return false
	}
	return l.knows(id)
}

// Owns reports whether an assignment is current.
func (b *Dispatcher) Owns(t Assignment) bool { return b.lane(t) != nil }

// Published reports whether the dispatcher knows that a row was published.
func (b *Dispatcher) Published(r *Row) bool {
	l := b.activeLane(r.Assignment)
	return l != nil && l.published(r.ID)
}
