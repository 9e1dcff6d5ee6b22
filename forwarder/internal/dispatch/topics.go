package dispatch

import "time"

// topic is a topic with rows that may be published, calls or trouble. It is paused when its broker could not be
// reached: when the pause is over, one probe message is sent; if the broker accepts it, the topic is open again, if
// not, the next pause is longer. An operator may pause it as well: then there are no probes. It is slow when slow and
// hung calls use most of its slots: then only some of its rows are kept in memory, or they would fill the room. While
// it is closed for any of these reasons, the keys whose next row is on it wait for it, and other topics continue.
type topic struct {
	name          string
	fresh, waited list[Call, *Call] // rows that may be published, without the probe
	turn          bool              // alternates between the two
	rows          int               // in memory and not in flight
	bytes         int64             //
	ready         int               // number of them that may go now
	links[topic]                    // among the topics with any

	calls, old, hung int // in flight, including hung ones; slow or hung ones of these; hung ones

	paused, slow, exhausted bool
	byOperator              bool        // an operator has paused it
	closed                  bool        // for one of these reasons
	until                   time.Time   // of the pause
	failures                int         // consecutive
	err                     error       // the last one
	reportAgainAt           time.Time   // when the trouble is next reported
	probe                   *Row        // queued or in flight
	probeInRead             bool        // a probe is being read
	candidates              []candidate // rows that may be its probe, the next one last
	unclassified            bool        // paused because everything fails, for an unknown reason

	unknown, publisher *failures // of this topic, and of all topics of its publisher

	dueUnseen    uint64        // lanes in which rows requeued while it was paused are unknown
	dueDropped   uint64        // lanes in which rows that fell due were dropped since it closed
	deferredIn   uint64        // lanes in which rows were deferred for it
	deferredFrom *[Lanes]int64 // lowest id of those: all of its rows are deferred from there on
	degraded     bool          // on the dispatcher's list

	rejectionReported time.Time // when a rejection was last reported
}

const (
	// recheckAfter is the pause before checking something again that should have changed by then.
	recheckAfter = 50 * time.Millisecond
	// reportInterval is how often trouble is reported again.
	reportInterval = time.Minute
	// maxIdleTopics is how many idle topics are remembered.
	maxIdleTopics = 1024
	// maxSteps is how many keys or rows one event visits for a topic.
	maxSteps = 256
)

func (d *Dispatcher) topicOf(name string) *topic {
	t := d.topics[name]
	if t == nil {
		t = &topic{name: name, unknown: &failures{}, publisher: d.publisherOf(name)}
		d.topics[name] = t
	}
	return t
}

// forgetTopic forgets an idle topic, if there are many.
func (d *Dispatcher) forgetTopic(t *topic) {
	if len(d.topics) > maxIdleTopics && t.calls == 0 && t.rows == 0 && t.probe == nil && !t.probeInRead && !t.degraded {
		delete(d.topics, t.name)
	}
}

// update applies a change of calls, queues or pauses to a topic.
func (d *Dispatcher) update(t *topic) {
	slots := d.cfg.Concurrency
	switch {
	case !t.slow && t.calls >= slots && 2*t.old >= slots:
		t.slow = true
		d.degrade(t)
	case t.slow && 4*t.old < slots:
		t.slow = false
	}
	rows, bytes := d.quota()
	closed := t.paused || t.byOperator || t.slow &&
		(t.rows >= rows || t.bytes >= bytes || t.closed && (2*t.rows > rows || 2*t.bytes > bytes))
	if t.paused && !t.unclassified || t.byOperator {
		t.dueUnseen = ^uint64(0) // until it is open and a read has covered them
	}
	if t.closed && !closed && t.deferredIn|t.dueUnseen != 0 {
		d.wantRead = true
	}
	if t.closed = closed; !closed {
		t.dueDropped = 0
	}

	ready := t.fresh.n + t.waited.n
	if t.paused {
		ready = 0
		if t.probe != nil && t.probe.call.state == pending {
			ready = 1
		}
	}
	if t.byOperator || t.calls >= slots {
		ready = 0
	}
	switch {
	case ready > 0 && t.ready == 0:
		d.turns.push(t)
	case ready == 0 && t.ready > 0:
		d.turns.remove(t)
	}
	d.ready += ready - t.ready
	t.ready = ready
}

// dropDue records that a row that fell due was dropped, if that is because the topic is closed.
func (t *topic) dropDue(l *lane) {
	if t.closed {
		t.dueDropped |= 1 << l.assignment.Lane
	}
}

// quota returns how much of a slow topic may be in memory: there may be callsFactor of them.
func (d *Dispatcher) quota() (rows int, bytes int64) {
	return max(1, d.cfg.Rows/(2*callsFactor)), max(1, d.cfg.Bytes/(2*callsFactor))
}

// hasSlot reports whether the topic's own limit allows another call.
func (d *Dispatcher) hasSlot(t *topic) bool { return t.calls < d.cfg.Concurrency }

// excess returns the next row to defer of a closed topic, the last of its queue: a slow topic keeps the first, with the
// rows behind it. A probe is deferred too if an operator paused the topic: no row of its key may go while it is in
// memory.
func (d *Dispatcher) excess(t *topic) *Call {
	rows, bytes := d.quota()
	switch {
	case t.paused || t.byOperator:
		if t.byOperator && t.probe != nil && t.probe.call.state == pending {
			return &t.probe.call
		}
	case !t.slow || t.fresh.n+t.waited.n <= 1 || t.rows <= rows && t.bytes <= bytes:
		return nil
	}
	if t.fresh.n > 0 {
		return t.fresh.back
	}
	return t.waited.back
}

// deferExcess defers rows that were in memory when their topic was closed.
func (d *Dispatcher) deferExcess() {
	left := maxSteps
	for _, t := range d.degraded {
		for c := d.excess(t); c != nil && left > 0; c = d.excess(t) {
			left--
			l, k := d.lanes[c.Row.Assignment.Lane], c.key
			if k != nil && !c.bypass {
				left -= int(k.n)
				d.deferQueueFor(k, t)
				d.advance(k)
				continue
			}
			d.drop(l, c.Row)
			if k != nil {
				k.inFlight = nil
			}
			d.deferUnsent(l, c, false)
		}
	}
}

// enqueue queues a row to be published when its topic has its turn.
func (d *Dispatcher) enqueue(r *Row) {
	c := &r.call
	t := c.topic
	c.state = pending
	if c.waited {
		t.waited.push(c)
	} else {
		t.fresh.push(c)
	}
	d.update(t)
}

// unqueue removes a row from its topic's queue.
func (d *Dispatcher) unqueue(c *Call) {
	t := c.topic
	switch {
	case t.probe == c.Row:
		t.probe = nil
	case c.waited:
		t.waited.remove(c)
	default:
		t.fresh.remove(c)
	}
	d.update(t)
}

// first removes the next row from a topic's queues. Rows that waited take turns with the others, so that many keys that
// recover together do not delay all healthy ones.
func (t *topic) first() *Call {
	if t.paused {
		return &t.probe.call
	}
	queue, other := &t.fresh, &t.waited
	if t.turn = !t.turn; t.turn {
		queue, other = other, queue
	}
	if queue.n == 0 {
		queue = other
	}
	c := queue.front
	queue.remove(c)
	return c
}
