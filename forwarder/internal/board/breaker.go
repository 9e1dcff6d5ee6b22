package board

// An error that is not recognised may be the fault of its message or of the broker. A circuit breaker decides: while
// few messages have failed in a row the message is charged; from the fifth on its topic is paused and nothing is.

// breakAfter is how many messages must fail in a row, and none be published, for their topic to be paused.
const breakAfter = 5

// failures counts messages that failed for an unknown reason since the last success. One that fails again and again
// counts once.
type failures struct {
	last string // the uuid of the latest: an id may be another message's after a crash
	n    int
}

func (f *failures) add(uuid string) {
	if f.last != uuid {
		f.last = uuid
		f.n++
	}
}

// publisher is what topics have in common that go to the same publisher.
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

// failedUnknown takes a message that failed for an unknown reason. A trial is charged if its topic was paused for an
// error that was known: the broker answers again.
func (b *Board) failedUnknown(l *lane, c *Call, res Result) {
	t := c.topic
	trial := t.trial == c.Row
	t.unknown.add(c.Row.UUID)
	if !t.paused { // one that is says nothing of others
		t.publisher.add(c.Row.UUID)
	}
	switch {
	case l.handing || t.paused && !trial: // it was sent before the pause
		b.sendBack(l, c, true)
	case trial && t.guessed || max(t.unknown.n, t.publisher.n) >= breakAfter:
		b.pause(c.Row, res.Err, true)
		b.sendBack(l, c, true)
	case trial:
		b.resumes(t)
		b.rejected(l, c, res)
	default:
		b.rejected(l, c, res)
	}
}

// works closes the breaker of a topic of which something was published, and has the others of its publisher tried.
func (b *Board) works(c *Call) {
	t := c.topic
	t.unknown, t.publisher.failures = failures{}, failures{}
	if t.trial == c.Row || t.paused && t.guessed {
		b.resumes(t)
	}
}

// resumes opens a topic whose broker has answered, and has the others of its publisher tried at once.
func (b *Board) resumes(answered *topic) {
	b.reopen(answered)
	for _, t := range b.troubled {
		if t.publisher == answered.publisher && t.paused && t.until.After(b.now) {
			t.until = b.now
			if t.lanes == 0 { // else one of the keys that wait is tried
				b.bringHeads(t)
			}
		}
	}
}

// bringHeads has the late heads of a topic looked at now. It walks all heads of the lanes that have any.
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
