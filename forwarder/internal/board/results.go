package board

import "time"

// Failure is a failed attempt that must be written to the database.
type Failure struct {
	Row       *Row
	Err       error
	Attempts  int           // including this one
	Delay     time.Duration // until the next attempt
	Permanent bool
}

// Outcome is the database's answer to a failure.
type Outcome struct {
	Failure
	Kind OutcomeKind
}

// OutcomeKind is the database's answer to a failure.
type OutcomeKind uint8

const (
	Waiting OutcomeKind = iota // recorded; another attempt is due after the delay
	Dead                       // recorded; there will be no other attempt
	Gone                       // another settled or deleted the message
	Fenced                     // the lane belongs to another forwarder
	Locked                     // not recorded: another transaction has locked the row
)

// judge acts on the result of a call.
func (b *Board) judge(c *Call, r Result) {
	l := b.lane(c.Row.Term)
	if r.Verdict == OK {
		b.succeeded(c, false)
	} else if l != nil { // otherwise another forwarder judges it
		switch b.concludeProbe(l, c, r); {
		case l.published(c.Row.ID): // an earlier attempt succeeded late
			if c.key != nil {
				b.rowDone(c.key, c.Row.ID)
			}
		case r.Verdict == Unknown:
			b.failedUnknown(l, c, r)
		case r.Verdict == Retry || r.Verdict == Permanent:
			b.rejected(l, c, r)
		default:
			b.sendBack(l, c, true)
		}
	}
	if l != nil {
		b.freeIfDone(l)
	}
}

// published reports whether a row was published and is not forgotten yet.
func (l *lane) published(id int64) bool {
	r := l.known[id]
	return r != nil && r.call.published
}

// concludeProbe applies a failure to the topic.
func (b *Board) concludeProbe(l *lane, c *Call, r Result) {
	t := c.topic
	switch {
	case r.Verdict == Unavailable:
		b.pause(c.Row, r.Err, false)
	case t.probe != c.Row, r.Verdict == Unknown && !l.published(c.Row.ID): // see failedUnknown
	case r.Verdict == Aborted, r.Verdict == Unknown:
		t.probe = nil // it is inconclusive; another one follows
		b.update(t)
	default:
		b.reopen(t) // the broker answered
	}
}

// succeeded handles a published message, even if its lane now has another owner.
func (b *Board) succeeded(c *Call, late bool) {
	r := c.Row
	r.Payload, r.Metadata = nil, nil // settling needs neither
	c.published = true
	b.published = append(b.published, r)
	b.works(c)
	l := b.unsettledOf(c)
	if l == nil || l.handing {
		return
	}
	if l.sentAgainSince(r) {
		b.triesAgain(l, r)
		return
	}
	if late {
		b.forgetCopies(l, r)
	}
	l.known[r.ID] = r // in case it was replaced by another attempt, or forgotten with one
	if h := l.heads[r.ID]; h != nil {
		b.removeHead(l, h)
	} else if c.key != nil && !late {
		b.rowDone(c.key, r.ID)
	}
}

// forgetCopies forgets waiting copies of a row that was published after it had timed out. A copy already in flight is a
// repetition.
func (b *Board) forgetCopies(l *lane, r *Row) {
	if copy := l.known[r.ID]; copy != nil {
		b.withdraw(l, copy)
	}
	if k := l.keys[r.Key]; k != nil {
		b.rowDone(k, r.ID)
	} else if d, waits := l.waits[r.Key]; waits && d.low == r.ID && d.topic.closed {
		b.unblock(l, r.Key)
	}
}

// rejected handles a message that failed through its own fault.
func (b *Board) rejected(l *lane, c *Call, res Result) {
	b.block(l, c)
	b.charge(c, res)
}

// block blocks the key of a message that failed: it is due when that is settled.
func (b *Board) block(l *lane, c *Call) {
	b.unsettledOf(c)
	switch r := c.Row; {
	case r.Key == "" || l.handing:
	case l.sentAgainSince(r):
		b.triesAgain(l, r)
	default:
		h := b.newHead(l, r.Key, r.ID, r.Topic)
		h.act = r.Generation
		b.unschedule(l, h)
	}
}

// charge queues a failure to be written.
func (b *Board) charge(c *Call, res Result) {
	r, t := c.Row, c.topic
	f := Failure{Row: r, Err: res.Err, Attempts: r.Attempts + 1, Permanent: res.Verdict == Permanent}
	if f.Delay = res.Wait; f.Delay == 0 {
		f.Delay = b.cfg.Backoff(f.Attempts)
	}
	b.failed = append(b.failed, f)
	b.effects.Settle = true
	if !f.Permanent { // a permanent one is reported as dead
		again := b.now.Sub(t.rejected) < repeatEvery
		if !again {
			t.rejected = b.now
		}
		report := r.about(RowRejected)
		report.Attempts, report.Wait, report.Repeated, report.Err = f.Attempts, f.Delay, again, f.Err
		b.report(report)
	}
}

// sendBack defers a row that is no longer in memory, because it could not be sent. again means that it was handed out.
// It is not recorded in c, which the worker reads without a lock.
func (b *Board) sendBack(l *lane, c *Call, again bool) {
	r, t := c.Row, c.topic
	if l.handing {
		return
	}
	delete(l.known, r.ID)
	l.away++
	h := l.heads[r.ID]
	switch k := c.key; {
	case h != nil:
		if h.index < 0 {
			b.putOff(l, h, t)
		}
		if k != nil {
			b.advance(k)
		}
	case k == nil:
		b.deferFor(l, t, r, again)
	case t.closed:
		b.deferFor(l, t, r, again)
		b.putBack(k)
		b.advance(k)
	default:
		b.postpone(k, r)
		b.putBack(k)
		b.advance(k)
	}
}

// unsettledOf counts a result to be settled, and returns its lane, or nil if its term is over.
func (b *Board) unsettledOf(c *Call) *lane {
	c.results++
	b.unsettled++
	b.effects.Settle = true
	l := b.lane(c.Row.Term)
	if l != nil {
		l.unsettled++
	}
	return l
}

// Results returns results to be settled, limited for each kind, oldest first. The caller keeps them until it calls
// Settled or Unsettled.
func (b *Board) Results(most int) (published []*Row, failed []Failure) {
	published, b.published = split(b.published, most)
	failed, b.failed = split(b.failed, most)
	return published, failed
}

func split[T any](list []T, most int) (taken, left []T) {
	if len(list) <= most {
		return list, nil
	}
	return list[:most:most], list[most:]
}

// Settled applies the database's answers. A locked failure is handed out again.
func (b *Board) Settled(now time.Time, published []*Row, failed []Outcome) {
	b.now = now
	for _, r := range published {
		b.countSettled(r)
	}
	for _, o := range failed {
		b.settledAs(o)
	}
}

// countSettled counts a settled result.
func (b *Board) countSettled(r *Row) {
	r.call.results--
	b.unsettled--
	if l := b.lane(r.Term); l != nil {
		l.unsettled--
		b.settled = append(b.settled, r)
		b.freeIfDone(l)
	}
}

// settledAs applies the outcome of a failure.
func (b *Board) settledAs(o Outcome) {
	r := o.Row
	if o.Kind == Locked {
		b.failed = append(b.failed, o.Failure)
		b.effects.Settle = true
		return
	}
	if o.Kind == Fenced {
		b.LanesLost(r.Term)
	}
	b.countSettled(r)
	if o.Kind == Dead {
		report := r.about(RowDead)
		report.Attempts, report.Err = o.Attempts, o.Err
		b.report(report)
	}
	l := b.open(r.Term)
	if l == nil || l.published(r.ID) {
		return
	}
	h := l.heads[r.ID]
	switch {
	case r.Key == "" && o.Kind == Waiting:
		b.addHead(l, "", r.ID, r.Topic, b.now.Add(o.Delay))
	case h == nil || h.index >= 0: // it was published after all
	case o.Kind == Waiting:
		b.schedule(l, h, b.now.Add(o.Delay))
	case o.Kind == Dead && b.cfg.BlockKeyOnDead:
		b.schedule(l, h, b.now.Add(never))
	default:
		b.removeHead(l, h)
	}
}

// Unsettled drops results that were given up at a stop: their messages will be sent again.
func (b *Board) Unsettled(published []*Row, failed []Failure) {
	for _, r := range published {
		b.countSettled(r)
	}
	for _, f := range failed {
		b.countSettled(f.Row)
	}
}
