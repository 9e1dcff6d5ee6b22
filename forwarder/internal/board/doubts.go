package board

import "time"

// An error that is not recognised may be the fault of its message or of the broker. What else happens tells: see the
// words and "Doubts" in the package comment.

const (
	// mostSuspects is how many messages of a topic may fail in a row, and none be published, before it counts as out.
	mostSuspects = 16
	// mostRemembered is of how many messages of a topic that failed, and were not charged, it is remembered when.
	mostRemembered = 256
)

// suspect is a message that failed, and it is open whether it is to be charged.
type suspect struct {
	call *Call
	err  error
	at   time.Time
}

// streak is what failed, for unknown reasons or because of the broker, since something was published last.
type streak struct {
	first   string // the uuid of a message, as an id may be another's after a crash
	any     bool
	several bool // messages
}

func (s *streak) failed(uuid string) {
	s.several = s.several || s.any && s.first != uuid
	if !s.any {
		s.any, s.first = true, uuid
	}
}

// broker is what topics have in common whose messages go to the same publisher.
type broker struct {
	streak
	worked time.Time // when it published something last
	down   time.Time // when a topic was paused, unless something was published since by a call of after that
}

func (b *Board) brokerOf(topic string) *broker {
	n := 0
	if b.cfg.Broker != nil {
		n = b.cfg.Broker(topic)
	}
	if b.brokers[n] == nil {
		b.brokers[n] = &broker{}
	}
	return b.brokers[n]
}

// fails notes which message failed. A topic that is paused although its broker works says nothing of other topics.
func (t *topic) fails(uuid string) {
	t.streak.failed(uuid)
	if !t.paused || !t.broker.worked.After(t.since) {
		t.broker.failed(uuid)
	}
}

// severalFail says that everything fails, and that it is not one message alone.
func (t *topic) severalFail() bool { return t.several || t.broker.several }

// remember notes that a message failed, and says whether its topic has published something since it failed before.
func (t *topic) remember(uuid string) (workedSince bool) {
	at, found := t.failedAt[uuid]
	if t.failedAt == nil {
		t.failedAt = map[string]uint64{}
	}
	if found || len(t.failedAt) < mostRemembered {
		t.failedAt[uuid] = t.worked
	}
	return found && at != t.worked
}

// doubted takes a message that failed for an unknown reason.
func (b *Board) doubted(l *lane, c *Call, res Result) {
	t, r := c.topic, c.Row
	guilty := t.remember(r.UUID)
	isTrial := t.trial == r
	if guilty && !t.paused && !l.handing {
		b.rejected(l, c, res)
		return
	}
	switch t.fails(r.UUID); {
	case l.handing || t.paused && !isTrial: // it was sent before the pause
		b.sendBack(l, c, true)
	case isTrial && t.severalFail():
		b.pause(r, res.Err, t.guessed)
		b.sendBack(l, c, true)
	case isTrial:
		b.resumes(t)
		b.rejected(l, c, res)
	default:
		b.suspect(l, c, res.Err)
	}
}

// suspect blocks the key of a message until it can be told whether it is to be charged.
func (b *Board) suspect(l *lane, c *Call, err error) {
	if c.state == returned {
		c.Row.Payload, c.Row.Metadata = nil, nil // neither a failure nor a place among the parked needs them
	}
	b.suspects++
	c.topic.suspects = append(c.topic.suspects, suspect{c, err, b.now})
	b.trouble(c.topic)
	b.block(l, c)
}

// decide finds out whether the suspects of a topic are to be charged, if that can be told by now: when everything else
// that is under way, or may go, has its answer, and at last when they have waited for as long as a call takes to be
// slow.
func (b *Board) decide(t *topic) {
	if len(t.suspects) == 0 {
		return
	}
	over := b.young.n == 0 && b.ready == 0 || !b.now.Before(t.decideAt(b))
	switch several := t.severalFail(); {
	case several && (over || len(t.suspects) >= mostSuspects):
		last := t.suspects[len(t.suspects)-1]
		b.pause(last.call.Row, last.err, true)
	case !several && over:
		b.convict(t)
	}
}

func (t *topic) decideAt(b *Board) time.Time { return t.suspects[0].at.Add(b.cfg.SlowAfter) }

// decideAll is decide after a call has its answer.
func (b *Board) decideAll(t *topic) {
	if b.suspects == 0 {
		return
	}
	b.decide(t)
	if b.young.n == 0 && b.ready == 0 {
		for _, t := range b.troubled {
			b.decide(t)
		}
	}
}

// takeSuspects empties the list of those of a topic.
func (b *Board) takeSuspects(t *topic) []suspect {
	list := t.suspects
	b.suspects -= len(list)
	t.suspects = nil
	return list
}

// convict charges the suspects of a topic.
func (b *Board) convict(t *topic) {
	for _, s := range b.takeSuspects(t) {
		b.charge(s.call, Result{Verdict: Unknown, Err: s.err})
	}
}

// pardon parks the suspects of a topic that is paused now.
func (b *Board) pardon(t *topic) {
	for _, s := range b.takeSuspects(t) {
		l, r := b.lanes[s.call.Row.Term.Lane], s.call.Row
		b.acquit(l, s.call)
		switch h := l.heads[r.ID]; {
		case l.sentAgainSince(r):
			b.triesAgain(l, r)
			if l.known[r.ID] == r {
				delete(l.known, r.ID)
			}
		case h == nil || h.key == nil || r.Attempts > 0:
			b.sendBack(l, s.call, true)
		default: // it blocked its key for the verdict alone
			delete(l.known, r.ID)
			b.wait(h.key, t)
			b.parkAgain(h.key, r, true)
			b.waitsAfter(h.key, r.ID)
			b.removeHead(l, h)
		}
	}
}

// acquit counts a suspect that is none any more.
func (b *Board) acquit(l *lane, c *Call) {
	c.results--
	b.unsettled--
	l.unsettled--
}

// forgetSuspects forgets those of a lane.
func (b *Board) forgetSuspects(t *topic, l *lane) {
	kept := t.suspects[:0]
	for _, s := range t.suspects {
		if s.call.Row.Term == l.term {
			b.suspects--
			b.acquit(l, s.call)
		} else {
			kept = append(kept, s)
		}
	}
	clear(t.suspects[len(kept):])
	t.suspects = kept
	t.failedAt = nil // it would remember others' messages
}

// vouches says that a topic works, as a message of it was published: those that failed meanwhile are to be charged.
func (b *Board) vouches(c *Call) {
	t := c.topic
	t.worked++
	t.streak, t.broker.streak, t.broker.worked = streak{}, streak{}, b.now
	if len(t.failedAt) > 0 {
		delete(t.failedAt, c.Row.UUID)
	}
	for i, s := range t.suspects {
		r := s.call.Row
		if l := b.lanes[r.Term.Lane]; r.ID == c.Row.ID && r.Term == c.Row.Term && !r.sentAgainAfter(c.Row) &&
			!l.sentAgainSince(r) { // it timed out before; in another term the database will know
			b.suspects--
			b.acquit(l, s.call)
			t.suspects = append(t.suspects[:i], t.suspects[i+1:]...)
			break
		}
	}
	b.convict(t)
	if t.trial == c.Row || t.paused && t.guessed {
		b.resumes(t)
	}
	if br := t.broker; !br.down.IsZero() && c.Started.After(br.down) {
		br.down = time.Time{}
		b.hurry(t, false)
	}
}

// resumes opens a topic whose broker has answered, and has others of the same publisher tried at once, unless the pause
// was short.
func (b *Board) resumes(t *topic) {
	long := t.failures > 1
	b.reopen(t)
	if long {
		b.hurry(t, true)
	}
}

// hurry has the topics tried that are paused, though the publisher works: their pauses begin anew. Each is hurried once
// by a topic that was not paused itself, as its trouble may be its own.
func (b *Board) hurry(by *topic, again bool) {
	for _, t := range b.troubled {
		if t != by && t.broker == by.broker && t.paused && (again || !t.hurried) {
			t.hurried, t.step = true, 0
			b.bring(t, b.now)
		}
	}
}

// scout has one of the topics of a publisher tried soon, however long they are paused: the first that works has the
// others tried.
func (b *Board) scout(of *broker) {
	by := b.now.Add(max(b.cfg.SlowAfter, b.cfg.OutageBackoff(1)))
	var next *topic
	for _, t := range b.troubled {
		switch {
		case t.broker != of || !t.wantsTrial() || !b.hasPlace(t):
		case !t.until.After(by):
			return
		case next == nil || t.until.Before(next.until):
			next = t
		}
	}
	if next != nil {
		b.bring(next, by)
	}
}

// bring ends a pause sooner.
func (b *Board) bring(t *topic, at time.Time) {
	if !t.until.After(at) {
		return
	}
	t.until = at
	if t.lanes == 0 { // else one of the keys that wait is tried
		b.bringHeads(t, at)
	}
}

// bringHeads has the late heads of a topic looked at sooner. It walks all heads of the lanes that have any.
func (b *Board) bringHeads(t *topic, at time.Time) {
	for _, l := range b.lanes {
		if l == nil || l.late[t.name] == 0 {
			continue
		}
		var sooner []*head
		for _, h := range l.retries {
			if h.late && h.topic == t.name && h.due.After(at) {
				sooner = append(sooner, h)
			}
		}
		for _, h := range sooner {
			b.later(l, h, at)
		}
	}
}
