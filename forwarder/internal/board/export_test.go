package board

// Sizes is what is remembered.
// Heads with the Keyless ones, that have no key
type Sizes struct{ Topics, Degraded, Keys, Known, Heads, Keyless, Lows int }

func (b *Board) Sizes() Sizes {
	s := Sizes{Topics: len(b.topics), Degraded: len(b.degraded), Keyless: b.keyless}
	for _, l := range b.lanes {
		if l != nil {
			s.Keys += len(l.keys)
			s.Known += len(l.known)
			s.Heads += len(l.heads)
			s.Lows += l.lows
		}
	}
	return s
}

// Knows says whether an id needs no second look: in memory, settled since the last read began, or a head.
func (b *Board) Knows(t Term, id int64) bool {
	l := b.lane(t)
	if l == nil {
		return false
	}
	return l.knows(id)
}

// Owns says whether a term is not over.
func (b *Board) Owns(t Term) bool { return b.lane(t) != nil }

// Published says whether the board knows of a row that it was published.
func (b *Board) Published(r *Row) bool {
	l := b.open(r.Term)
	return l != nil && l.published(r.ID)
}
