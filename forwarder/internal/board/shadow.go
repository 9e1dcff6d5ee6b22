package board

import "time"

// shadowLooksAgain is how long a row may wait that was refused although its topic may be open. Its key's bits may be
// those of other keys: with another seed they hardly are.
const shadowLooksAgain = 5 * time.Minute

// shadow is what of a lane there was no room to park: the lowest id, and some bits per hash of key. Once the bits of a
// key are set nothing new of it is kept, whatever its id: only what is in memory or parked goes on. A rewind clears it:
// from below the lowest id the lane is read again.
type shadow struct {
	bits []uint64
	seed uint64
	low  int64
	want bool      // a rewind
	hit  time.Time // when a row was refused first although its topic may be open
}

// has says whether something of a key was refused, or, rarely, of others.
func (s *shadow) has(name string) bool {
	if s == nil {
		return false
	}
	for i := range uint64(probes) {
		if word, bit := s.bit(name, i); s.bits[word]&bit == 0 {
			return false
		}
	}
	return true
}

const probes = 4

// bit returns the place of the i-th bit of a name: FNV-1a, a finaliser, and double hashing.
func (s *shadow) bit(name string, i uint64) (word, bit uint64) {
	h := uint64(14695981039346656037) + s.seed
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd // as the last bytes reach few bits
	h ^= h >> 33
	n := (h>>32 + i*(h|1)) & uint64(len(s.bits)*64-1)
	return n / 64, 1 << (n % 64)
}

// refuse puts a row into the shadow. One that fell due comes again with the next read of what fell due.
func (b *Board) refuse(l *lane, name string, id int64, due bool) {
	if due {
		return
	}
	s := l.shadow
	if s == nil {
		b.shadows++
		s = &shadow{bits: make([]uint64, b.shadowWords), seed: b.shadows, low: id}
		l.shadow = s
		if b.now.Sub(l.shadowed) >= repeatEvery {
			l.shadowed = b.now
			b.report(Report{Kind: Shadowed, Lane: l.term.Lane, ID: id})
		}
	}
	for i := range uint64(probes) {
		word, bit := s.bit(name, i)
		s.bits[word] |= bit
	}
	s.low = min(s.low, id)
}

// refuseFor puts a row of a key into the shadow and notes when the lane is to be read again: when the topic that the
// key waits for is open again, or the key is free and has used up what is parked of it. A row on another topic, or on
// one that is not known (t is nil), waits in vain once the key's first row is gone: the shadow does not show that.
func (b *Board) refuseFor(k *key, id int64, t *topic, due bool) {
	if due {
		return
	}
	b.refuse(k.lane, k.name, id, due)
	if k.topic == nil {
		k.refused = true
		return
	}
	k.topic.refused |= 1 << k.lane.term.Lane
	if t != k.topic && !k.isPen() {
		b.waitsInVain(k.lane, t)
	}
}

// waitsInVain notes that a row may have been refused for nothing: for the bits alone, which may be those of other keys,
// or for an earlier row that is gone.
func (b *Board) waitsInVain(l *lane, t *topic) {
	if t != nil && t.closed {
		t.refused |= 1 << l.term.Lane
	} else if l.shadow.hit.IsZero() {
		l.shadow.hit = b.now
	}
}

// wantRewind asks for the lane of a key that has used up what is parked of it, and sent more to the shadow.
func (b *Board) wantRewind(k *key) {
	k.refused = false
	if s := k.lane.shadow; s.has(k.name) && !s.want {
		s.want = true
		b.effects.Read = true
	}
}

// rewind clears the shadow of one lane that is to be read again.
func (b *Board) rewind(a *Asks) {
	may := b.mayRewind()
	for l := range b.inTurn {
		s, mask := l.shadow, uint64(1)<<l.term.Lane
		if s == nil {
			continue
		}
		if s.want || may&mask != 0 || !s.hit.IsZero() && b.now.Sub(s.hit) >= shadowLooksAgain {
			a.Rewinds = append(a.Rewinds, Rewind{l.term, s.low - 1})
			l.shadow = nil
			for _, t := range b.troubled {
				t.refused &^= mask
			}
			return
		}
	}
}

// mayRewind returns the lanes in which something was refused for a topic that is open again and has used up most of
// what is parked of it, so that there is room.
func (b *Board) mayRewind() (lanes uint64) {
	for _, t := range b.troubled {
		if !t.closed && 2*t.parked <= max(0, b.topicsMay()-b.waiting) {
			lanes |= t.refused
		}
	}
	return lanes
}
