package dispatch

// Sizes is what is remembered.
// Blocked rows with the Keyless ones, that have no key
type Sizes struct{ Topics, Degraded, Keys, Known, Heads, Keyless, Lows int }

func (b *Dispatcher) Sizes() Sizes {
	s := Sizes{Topics: len(b.topics), Degraded: len(b.degraded), Keyless: b.keyless}
	for _, l := range b.lanes {
		if l != nil {
			s.Keys += len(l.keys)
			s.Known += len(l.known)
			s.Heads += len(l.blocked)
			s.Lows += l.deferredKeys
		}
	}
	return s
}

// Knows says whether an id needs no second look: in memory, settled since the last read began, or a blocked row.
func (b *Dispatcher) Knows(t Assignment, id int64) bool {
	l := b.lane(t)
	if l == nil {
		return false
	}
	return l.knows(id)
}

// Owns says whether an assignment is not over.
func (b *Dispatcher) Owns(t Assignment) bool { return b.lane(t) != nil }

// Published says whether the dispatcher knows of a row that it was published.
func (b *Dispatcher) Published(r *Row) bool {
	l := b.activeLane(r.Assignment)
	return l != nil && l.published(r.ID)
}
