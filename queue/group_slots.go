package queue

// slots is the concurrency limit of a Group, or of the connections of a pool. A claim reserves one for each message
// that it requests, so that no more messages are claimed than can be handled. A slow claim keeps at most one, and only
// a few slow claims keep any, so that unresponsive databases leave nearly all slots to the others. It is guarded by
// Group.mu.
type slots struct {
	most  int
	taken int // by messages and claims
	slow  int // by slow claims
}

// Slow claims may keep 1/slowShare of the slots, at least one but never all.
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

// reservation holds the slots of a claim in flight.
type reservation struct {
	slots *slots
	n     int
	slow  bool // one of them counts as used by a slow claim
}

// slowed must be called when the claim turns out to be slow.
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

// confirm ends the reservation of a claim of n messages, and returns how many of them have slots. The caller releases
// the others.
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

// connSlots are the slots of a connection pool. Messages being handled need them because their handlers use
// connections.
type connSlots struct {
	slots     slots
	databases int // databases that share the pool
}

const (
	noLimit = 1 << 30
	// reservedConns is the number of connections of a pool left for claims, renewals and acks, and for a forwarder that
	// drains the same databases.
	reservedConns = 2
)

// maxHandled is how many messages may be handled concurrently in databases that share a pool with conns connections:
// handlers in transactions use one each, and if they used all of them no lease would be renewed.
func (c *DispatcherConfig) maxHandled(conns int) int {
	inTx := c.DefaultHandler.Handle != nil && !c.DefaultHandler.Detached
	for _, h := range c.Handlers {
		inTx = inTx || !h.Detached
	}
	if conns <= 0 || !inTx {
		return noLimit
	}
	return max(1, conns-reservedConns)
}

// room returns how many more slots one poll may reserve: half of the free ones are left to other databases, so that a
// database that hangs does not take all of them before it is known to be slow.
func (s *connSlots) room() int {
	free := max(0, s.slots.free())
	if s.slots.most == noLimit || s.databases < 2 {
		return free
	}
	return (free + 1) / 2
}

// reservations holds slots of a Group and the same number of slots of a pool.
type reservations struct{ group, conns reservation }

// reserve reserves slots of both for a claim that is about to begin.
func (s *connSlots) reserve(group *slots, n int) reservations {
	return reservations{group.reserve(n), s.slots.reserve(n)}
}

func (k *reservations) slowed() {
	k.group.slowed()
	k.conns.slowed()
}

func (k *reservations) confirm(n int) int {
	some := k.group.confirm(n)
	n = k.conns.confirm(some)
	k.group.slots.taken -= some - n
	return n
}

// release frees the slots of messages that are not handled.
func (k *reservations) release(n int) {
	k.group.slots.taken -= n
	k.conns.slots.taken -= n
}
