package dispatch

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
)

// applyResult acts on the result of a call.
func (d *Dispatcher) applyResult(c *Call, r Result) {
	l := d.lane(c.Row.Assignment)
	if r.Verdict == OK {
		d.succeeded(c, false)
	} else if l != nil { // otherwise another forwarder judges it
		switch d.concludeProbe(l, c, r); {
		case l.published(c.Row.ID): // an earlier attempt succeeded late
			if c.key != nil {
				d.rowDone(c.key, c.Row.ID)
			}
		case r.Verdict == Unknown:
			d.failedUnknown(l, c, r)
		case r.Verdict == Retry || r.Verdict == Permanent:
			d.rejected(l, c, r)
		default:
			d.deferUnsent(l, c, true)
		}
	}
	if l != nil {
		d.freeIfDone(l)
	}
}

// published reports whether a row was published and is not forgotten yet.
func (l *lane) published(id int64) bool {
	r := l.known[id]
	return r != nil && r.call.published
}

// concludeProbe applies a failure to the topic.
func (d *Dispatcher) concludeProbe(l *lane, c *Call, r Result) {
	t := c.topic
	switch {
	case r.Verdict == Unavailable:
		d.pause(c.Row, r.Err, false)
	case t.probe != c.Row, r.Verdict == Unknown && !l.published(c.Row.ID): // see failedUnknown
	case r.Verdict == Aborted, r.Verdict == Unknown:
		t.probe = nil // it is inconclusive; another one follows
		d.update(t)
	default:
		d.reopen(t) // the broker answered
	}
}

// succeeded handles a published message, even if its lane now has another owner.
func (d *Dispatcher) succeeded(c *Call, late bool) {
	r := c.Row
	r.Payload, r.Metadata = nil, nil // settling needs neither
	c.published = true
	d.published = append(d.published, r)
	defer d.closeBreaker(c) // afterwards: an operator may pause the topic again before its keys have caught up
	l := d.countUnsettled(c)
	if l == nil || l.releasing {
		return
	}
	if l.requeuedSince(r) {
		d.retryRequeued(l, r)
		return
	}
	if late {
		d.forgetCopies(l, r)
	}
	l.known[r.ID] = r // in case it was replaced by another attempt, or forgotten with one
	if b := l.blocked[r.ID]; b != nil {
		d.removeBlocked(l, b)
	} else if c.key != nil && !late {
		d.rowDone(c.key, r.ID)
	}
}

// forgetCopies forgets waiting copies of a row that was published after it had timed out. A copy already in flight is a
// repetition.
func (d *Dispatcher) forgetCopies(l *lane, r *Row) {
	if copy := l.known[r.ID]; copy != nil {
		d.withdraw(l, copy)
	}
	if k := l.keys[r.Key]; k != nil {
		d.rowDone(k, r.ID)
	} else if w, waits := l.waits[r.Key]; waits && w.low == r.ID && w.topic.closed {
		d.endTopicWait(l, r.Key)
	}
}

// rejected handles a message that failed through its own fault.
func (d *Dispatcher) rejected(l *lane, c *Call, res Result) {
	d.block(l, c)
	d.charge(c, res)
}

// block blocks the key of a message that failed: it is due when that is settled.
func (d *Dispatcher) block(l *lane, c *Call) {
	d.countUnsettled(c)
	switch r := c.Row; {
	case r.Key == "" || l.releasing:
	case l.requeuedSince(r):
		d.retryRequeued(l, r)
	default:
		b := d.newBlocked(l, r.Key, r.ID, r.Topic)
		b.generation = r.Generation
		d.unschedule(l, b)
	}
}

// charge queues a failure to be written. A snoozed message is charged nothing but its first attempt.
func (d *Dispatcher) charge(c *Call, res Result) {
	r, t := c.Row, c.topic
	f := Failure{Row: r, Err: res.Err, Attempts: c.Attempt, Permanent: res.Verdict == Permanent}
	if res.Snooze {
		f.Attempts = max(r.Attempts, 1) // without an attempt it would be a delayed message, which does not block its key
	}
	if f.Delay = res.Wait; f.Delay == 0 {
		f.Delay = d.cfg.Backoff(f.Attempts)
	}
	d.failed = append(d.failed, f)
	d.effects.Settle = true
	if !f.Permanent && !res.Snooze { // a permanent one is reported as dead
		again := d.now.Sub(t.rejectionReported) < reportInterval
		if !again {
			t.rejectionReported = d.now
		}
		report := r.about(RowRejected)
		report.Attempts, report.Wait, report.Repeated, report.Err = f.Attempts, f.Delay, again, f.Err
		d.report(report)
	}
}

// deferUnsent defers a row that is no longer in memory, because it could not be sent. handedOut means that Next had
// returned it. It is not recorded in c, which the worker reads without a lock.
func (d *Dispatcher) deferUnsent(l *lane, c *Call, handedOut bool) {
	r, t := c.Row, c.topic
	if l.releasing {
		return
	}
	delete(l.known, r.ID)
	l.deferredRows++
	b := l.blocked[r.ID]
	switch k := c.key; {
	case b != nil:
		if b.index < 0 {
			d.waitForTopic(l, b, t)
		}
		if k != nil {
			d.advance(k)
		}
	case k == nil:
		d.deferForTopic(l, t, r, handedOut)
	case t.closed:
		d.deferForTopic(l, t, r, handedOut)
		d.deferQueue(k)
		d.advance(k)
	default:
		d.deferRow(k, r)
		d.deferQueue(k)
		d.advance(k)
	}
}

// countUnsettled counts a result to be settled, and returns its lane, or nil if its assignment is over.
func (d *Dispatcher) countUnsettled(c *Call) *lane {
	c.results++
	d.unsettled++
	d.effects.Settle = true
	l := d.lane(c.Row.Assignment)
	if l != nil {
		l.unsettled++
	}
	return l
}

// Results returns results to be settled, limited for each kind, oldest first. The caller keeps them until it calls
// Settled or Unsettled.
func (d *Dispatcher) Results(most int) (published []*Row, failed []Failure) {
	published, d.published = split(d.published, most)
	failed, d.failed = split(d.failed, most)
	return published, failed
}

func split[T any](list []T, most int) (taken, left []T) {
	if len(list) <= most {
		return list, nil
	}
	return list[:most:most], list[most:]
}

// Settled applies the database's answers.
func (d *Dispatcher) Settled(now time.Time, published []*Row, failed []Outcome) {
	d.now = now
	for _, r := range published {
		d.countSettled(r)
	}
	for _, o := range failed {
		d.applyOutcome(o)
	}
}

// countSettled counts a settled result.
func (d *Dispatcher) countSettled(r *Row) {
	r.call.results--
	d.unsettled--
	if l := d.lane(r.Assignment); l != nil {
		l.unsettled--
		d.settled = append(d.settled, r)
		d.freeIfDone(l)
	}
}

// applyOutcome applies the outcome of a failure.
func (d *Dispatcher) applyOutcome(o Outcome) {
	r := o.Row
	if o.Kind == Fenced {
		d.LanesLost(r.Assignment)
	}
	d.countSettled(r)
	if o.Kind == Dead {
		report := r.about(RowDead)
		report.Attempts, report.Err = o.Attempts, o.Err
		d.report(report)
	}
	l := d.activeLane(r.Assignment)
	if l == nil || l.published(r.ID) {
		return
	}
	b := l.blocked[r.ID]
	switch {
	case r.Key == "" && o.Kind == Waiting:
		d.addBlocked(l, "", r.ID, r.Topic, d.now.Add(o.Delay))
	case b == nil || b.index >= 0: // it was published after all
	case b.key != nil && b.generation != r.Generation: // requeued since
		if known := l.known[r.ID]; known == nil || known == r { // otherwise it was read again, and that call counts
			d.schedule(l, b, d.now)
		}
	case o.Kind == Waiting:
		d.schedule(l, b, d.now.Add(o.Delay))
	case o.Kind == Dead && d.cfg.BlockKeyOnDead && b.key != nil:
		d.schedule(l, b, d.now.Add(never))
	default:
		d.removeBlocked(l, b)
	}
}

// Unsettled drops results that were given up at a stop: their messages will be sent again.
func (d *Dispatcher) Unsettled(published []*Row, failed []Failure) {
	for _, r := range published {
		d.countSettled(r)
	}
	for _, f := range failed {
		d.countSettled(f.Row)
	}
}
