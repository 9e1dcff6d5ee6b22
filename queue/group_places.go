package queue

// places are the handlers of a Group. A claim keeps as many as it asks messages for, so that never more messages
// are claimed than can be handled. A claim that takes long gives its places back but for one, and there are few of
// those, so that databases that do not answer leave the others nearly all. A server has places as well, for the
// connections that handlers keep. It is guarded by Group.mu.
type places struct {
	most  int
	taken int // by messages and claims
	slow  int // of these by claims that take long
}

// slowShare is the part of the places that claims which take long may keep: one at least, but never all.
const slowShare = 8

func newPlaces(most int) places { return places{most: most} }

func (p *places) free() int { return p.most - p.taken }

// take is for a claim that begins.
func (p *places) take(n int) kept {
	p.taken += n
	return kept{places: p, n: n}
}

// give frees the place of a message.
func (p *places) give() { p.taken-- }

// kept are the places that a claim keeps.
type kept struct {
	places *places
	n      int
	slow   bool // one of them counts as slow
}

// slowed is called when the claim takes long.
func (k *kept) slowed() {
	p, keep := k.places, 0
	if k.n > 0 && p.slow < min(max(1, p.most/slowShare), p.most-1) {
		keep = 1
		p.slow++
		k.slow = true
	}
	p.taken -= k.n - keep
	k.n = keep
}

// got is called when the claim has brought n messages, and returns how many of them have places. The others are to be
// given back.
func (k *kept) got(n int) int {
	p := k.places
	if k.slow {
		p.slow--
		k.slow = false
	}
	p.taken -= k.n
	k.n = 0
	n = min(n, p.free())
	p.taken += n
	return n
}

// keptBoth are places of a Group and as many of a server.
type keptBoth struct{ group, server kept }

// take is for a claim that begins.
func (s *server) take(group *places, n int) keptBoth {
	return keptBoth{group.take(n), s.places.take(n)}
}

func (k *keptBoth) slowed() {
	k.group.slowed()
	k.server.slowed()
}

func (k *keptBoth) got(n int) int {
	some := k.group.got(n)
	n = k.server.got(some)
	k.group.places.taken -= some - n
	return n
}

// unused gives back places of messages that are not handled.
func (k *keptBoth) unused(n int) {
	k.group.places.taken -= n
	k.server.places.taken -= n
}
