package board

// An error without a verdict may be the fault of its message or of the broker. A circuit breaker decides: the first four
// messages that fail in a row are charged an attempt each; the fifth opens the breaker of its topic, which is paused.
// While it is open one message at a time probes the topic, and nothing is charged.

// breakAfter is the number of messages that must fail in a row, without a success, for their topic to be paused.
const breakAfter = 5

// failures counts the messages that have failed for an unknown reason since the last success. A message that fails
// several times in a row counts once.
type failures struct {
	last string // the uuid of the latest: after a crash an id may belong to another message
	n    int
}

func (f *failures) add(uuid string) {
	if f.last != uuid {
		f.last = uuid
		f.n++
	}
}

// publisher counts the failures of all topics that go to the same publisher.
type publisher struct{ failures }

func (b *Board) publisherOf(topic string) *publisher {
	n := 0
	if b.cfg.Broker != nil {
		n = b.cfg.Broker(topic)
	}
	if b.publishers[n] == nil {
		b.publishers[n] = &publisher{}
	}
	return b.publishers[n]
}

// failedUnknown handles a message that failed for an unknown reason. A trial is charged if its topic was paused because
// of an error with a verdict: the broker is answering again.
func (b *Board) failedUnknown(l *lane, c *Call, res Result) {
	t := c.topic
	trial := t.trial == c.Row
	t.unknown.add(c.Row.UUID)
	if !t.paused { // failures of a paused topic show nothing about the others
		t.publisher.add(c.Row.UUID)
	}
	switch {
	case l.handing || t.paused && !trial: // it was sent before the pause
		b.sendBack(l, c, true)
	case trial && t.guessed || max(t.unknown.n, t.publisher.n) >= breakAfter:
		b.pause(c.Row, res.Err, true)
		b.sendBack(l, c, true)
	case trial:
		b.reopen(t)
		b.rejected(l, c, res)
	default:
		b.rejected(l, c, res)
	}
}

// works closes the breaker of a topic after a successful publish.
func (b *Board) works(c *Call) {
	t := c.topic
	t.unknown, t.publisher.failures = failures{}, failures{}
	if t.trial == c.Row || t.paused && t.guessed {
		b.reopen(t)
	}
}

// bringHeads makes the late heads of a topic due now. It visits all heads of the lanes that have late ones.
func (b *Board) bringHeads(t *topic) {
	for _, l := range b.lanes {
		if l == nil || l.late[t.name] == 0 {
			continue
		}
		var sooner []*head
		for _, h := range l.retries {
			if h.late && h.topic == t.name && h.due.After(b.now) {
				sooner = append(sooner, h)
			}
		}
		for _, h := range sooner {
			b.later(l, h, b.now)
		}
	}
}
