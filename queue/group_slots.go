package queue

// slots are the concurrency limit of a Group, and of the connections of a pool. A claim reserves one for each message
// that it requests, so that no more messages are claimed than can be handled. A slow claim keeps at most one, and only
// a few claims may, so that databases that do not answer leave nearly all slots to the others. It is guarded by
// Group.mu.
type slots struct {
	most  int
	taken int // by messages and claims
	slow  int // of these, used by slow claims
}

// slowShare is the part of the slots that slow claims may keep: at least one, but never all.
const slowShare = 8

func newSlots(most int) slots { return slots{most: most} }

func (p *slots) free() int { return p.most - p.taken }

// reserve reserves slots for a claim that is about to begin.
func (p *slots) reserve(n int) reservation {
	p.taken += n
	return reservation{slots: p, n: n}
}

// release frees the slot of a message.
func (p *slots) release() { p.taken-- }

// reservation is the slots of a claim in flight.
type reservation struct {
	slots *slots
	n     int
	slow  bool // one of them counts as slow
}

// slowed must be called when the claim is slow.
func (k *reservation) slowed() {
	p, keep := k.slots, 0
	if k.n > 0 && p.slow < min(max(1, p.most/slowShare), p.most-1) {
		keep = 1
		p.slow++
		k.slow = true
	}
	p.taken -= k.n - keep
	k.n = keep
}

// confirm ends the reservation of a claim of n messages, and returns how many of them have slots. The caller gives the
// others back.
func (k *reservation) confirm(n int) int {
	p := k.slots
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

// reservations are slots of a Group and the same number of a pool.
type reservations struct{ group, pool reservation }

// reserve reserves slots of both for a claim that is about to begin.
func (s *pool) reserve(group *slots, n int) reservations {
	return reservations{group.reserve(n), s.slots.reserve(n)}
}

func (k *reservations) slowed() {
	k.group.slowed()
	k.pool.slowed()
}

func (k *reservations) confirm(n int) int {
	some := k.group.confirm(n)
	n = k.pool.confirm(some)
	k.group.slots.taken -= some - n
	return n
}

// release gives back slots of messages that are not handled.
func (k *reservations) release(n int) {
	k.group.slots.taken -= n
	k.pool.slots.taken -= n
}
