package board

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
func (b *Board) publisherOf(topic string) *failures {
	n := 0
	if b.cfg.Broker != nil {
		n = b.cfg.Broker(topic)
	}
	if b.publishers[n] == nil {
		b.publishers[n] = &failures{}
	}
	return b.publishers[n]
}

// failedUnknown handles a message that failed for an unknown reason. A probe is charged if its topic was paused because
// of an error with a verdict: the broker is answering again.
func (b *Board) failedUnknown(l *lane, c *Call, res Result) {
	t := c.topic
	probe := t.probe == c.Row
	t.unknown.add(c.Row.UUID)
	if !t.paused { // failures of a paused topic show nothing about the others
		t.publisher.add(c.Row.UUID)
	}
	switch {
	case l.handing || t.paused && !probe: // it was sent before the pause
		b.sendBack(l, c, true)
	case probe && t.guessed || max(len(*t.unknown), len(*t.publisher)) >= breakAfter:
		b.pause(c.Row, res.Err, true)
		b.sendBack(l, c, true)
	case probe:
		b.reopen(t)
		b.rejected(l, c, res)
	default:
		b.rejected(l, c, res)
	}
}

// works closes the breaker of a topic after a successful publish.
func (b *Board) works(c *Call) {
	t := c.topic
	*t.unknown, *t.publisher = nil, nil
	if t.probe == c.Row || t.paused && t.guessed {
		b.reopen(t)
	}
}

// retryOverdue makes the overdue heads of a topic due now. It visits all heads of the lanes that have overdue ones.
func (b *Board) retryOverdue(t *topic) {
	for _, l := range b.lanes {
		if l == nil || l.overdue[t.name] == 0 {
			continue
		}
		var sooner []*head
		for _, h := range l.retries {
			if h.overdue && h.topic == t.name && h.due.After(b.now) {
				sooner = append(sooner, h)
			}
		}
		for _, h := range sooner {
			b.later(l, h, b.now)
		}
	}
}
