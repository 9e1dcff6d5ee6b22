package dispatch

import "slices"

// An error without a verdict may be the fault of its message or of the broker. A circuit breaker decides: while fewer
// than five different messages have failed without a success, each failure is charged; the fifth message opens the
// breaker of its topic, which is paused. While it is open one message at a time probes the topic, and nothing is
// charged.

// breakAfter is the number of different messages that must fail without a success for their topic to be paused.
const breakAfter = 5

// failures has the messages that have failed for an unknown reason since the last success, up to breakAfter of them, by
// uuid: after a crash an id may belong to another message.
type failures []string

func (f *failures) add(uuid string) {
	if len(*f) < breakAfter && !slices.Contains(*f, uuid) {
		*f = append(*f, uuid)
	}
}

// publisherOf returns the failures of all topics that go to the same publisher.
func (d *Dispatcher) publisherOf(topic string) *failures {
	n := 0
	if d.cfg.Broker != nil {
		n = d.cfg.Broker(topic)
	}
	if d.publishers[n] == nil {
		d.publishers[n] = &failures{}
	}
	return d.publishers[n]
}

// failedUnknown handles a message that failed for an unknown reason. A probe is charged if its topic was paused because
// of an error with a verdict: the broker is answering again.
func (d *Dispatcher) failedUnknown(l *lane, c *Call, res Result) {
	t := c.topic
	probe := t.probe == c.Row
	t.unknown.add(c.Row.UUID)
	if !t.paused { // failures of a paused topic show nothing about the others
		t.publisher.add(c.Row.UUID)
	}
	switch {
	case l.releasing || t.paused && !probe: // it was sent before the pause
		d.deferUnsent(l, c, true)
	case probe && t.unclassified || max(len(*t.unknown), len(*t.publisher)) >= breakAfter:
		d.pause(c.Row, res.Err, true)
		d.deferUnsent(l, c, true)
	case probe:
		d.reopen(t)
		d.rejected(l, c, res)
	default:
		d.rejected(l, c, res)
	}
}

// closeBreaker closes the breaker of a topic after a successful publish.
func (d *Dispatcher) closeBreaker(c *Call) {
	t := c.topic
	*t.unknown, *t.publisher = nil, nil
	if t.probe == c.Row || t.paused && t.unclassified {
		d.reopen(t)
	}
}

// retryOverdue makes the overdue blocked rows of a topic due now. It visits all blocked rows of the lanes that have
// overdue ones.
func (d *Dispatcher) retryOverdue(t *topic) {
	for _, l := range d.lanes {
		if l == nil || l.overdue[t.name] == 0 {
			continue
		}
		var sooner []*blockedRow
		for _, b := range l.retries {
			if b.overdue && b.topic == t.name && b.due.After(d.now) {
				sooner = append(sooner, b)
			}
		}
		for _, b := range sooner {
			d.recheckAt(l, b, d.now)
		}
	}
}
