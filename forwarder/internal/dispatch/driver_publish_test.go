package dispatch_test

import (
	"errors"
	"slices"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// rowOf is a message in an assignment; after an operator requeues it, it counts as a different one.
type rowOf struct {
	term      dispatch.Assignment
	uuid, act string
}

func of(r *dispatch.Row) rowOf { return rowOf{r.Assignment, r.UUID, r.Generation} }

// telling is the result of a row's call as reported to the dispatcher, and what followed.
type telling struct {
	ok, failed           bool
	okTaken, failedTaken bool // by the settler
	failedAt             int  // clock, when the failure was settled
	unknown              bool // it failed without a verdict
	at                   int  // index in the forwarder's answers
}

// call is a Publish in flight.
type call struct {
	*dispatch.Call
	msg      *record
	landed   bool
	expired  bool // the dispatcher requested its end, but has no result yet
	timedOut bool // the dispatcher has this result
	recalled bool // the dispatcher wants it back
}

var (
	errRejected    = errors.New("rejected")
	errUnavailable = errors.New("unavailable")
	errTimeout     = errors.New("timed out")
	errUnknown     = errors.New("unknown")
)

// callOf returns the model's call for the one in an effect.
func (f *forwarder) callOf(c *dispatch.Call) *call {
	o := c.Tag.(*call)
	if !slices.Contains(f.calls, o) {
		f.m.failf("forwarder %d: an effect names row %d, which is not in flight", f.id, c.Row.ID)
		return nil
	}
	return o
}

// worker starts a publish, if there is one to start.
func (f *forwarder) worker() bool {
	first := f.launched > 0
	if first {
		f.launched--
	} else if f.m.tight {
		return false
	}
	c := f.coordinator.Next(f.m.db.now, nil, dispatch.Result{}, &call{}, first)
	f.take()
	if c == nil {
		return false
	}
	f.started(c)
	return true
}

func (f *forwarder) started(c *dispatch.Call) {
	r := c.Row
	f.logf("publishes %d (%s, key %q, topic %s, attempt %d) of lane %d, epoch %d", r.ID, r.UUID, r.Key, r.Topic, c.Attempt,
		r.Assignment.Lane, r.Assignment.Epoch)
	msg := f.m.messages[r.UUID]
	if msg == nil || msg.tx.committed == 0 && !msg.tx.lost {
		f.m.failf("row %d (%s) is published but was never committed", r.ID, r.UUID)
		return
	}
	if !f.m.db.now.Before(f.leaseUntil) {
		f.m.failf("row %d is published after the lease of forwarder %d expired", r.ID, f.id)
	}
	if !f.reads(r.Assignment) {
		f.m.failf("row %d is published in lane %d, epoch %d, which is not owned or is being released", r.ID,
			r.Assignment.Lane,
			r.Assignment.Epoch)
	}
	if r.Large {
		f.m.failf("row %d (%s) is published without its payload", r.ID, r.UUID)
	}
	f.m.checkTogether(r, msg)
	f.checkFound(c, msg)
	topic := 0
	for _, o := range f.calls {
		if o.Row.Topic == r.Topic {
			topic++
		}
		if o.Row.Assignment == r.Assignment && o.Row.Key == r.Key && r.Key != "" && !o.timedOut {
			f.m.failf("row %d is published while row %d of the same key is in flight", r.ID, o.Row.ID)
		}
		if o.Row == r {
			f.m.failf("row %d is published while the same call is in flight", r.ID)
		}
	}
	if topic >= f.m.cfg.Concurrency || len(f.calls) >= 8*f.m.cfg.Concurrency {
		f.m.failf("row %d is published in addition to %d calls of its topic and %d in total", r.ID, topic, len(f.calls))
	}
	if slices.Contains(f.paused, r.Topic) {
		f.m.failf("row %d is published although an operator has paused its topic %s", r.ID, r.Topic)
	}
	// A retry of a row without a key may be in the queue when a late success arrives.
	if f.success[of(r)] && !msg.replayed && r.Key != "" {
		f.m.failf("row %d (%s) is published again after its success was reported", r.ID, r.UUID)
	}
	o := c.Tag.(*call)
	o.Call, o.msg = c, msg
	f.calls = append(f.calls, o)
}

// checkFound checks that no requeued row that a read has found is overtaken by a row of its key with a higher id,
// unless that was tried before or is a probe: then it may have been about to go.
func (f *forwarder) checkFound(c *dispatch.Call, msg *record) {
	r := c.Row
	if r.Attempts > 0 || c.Probe {
		return
	}
	for _, e := range f.m.db.byKey[msg.key] {
		row := rowOf{r.Assignment, e.uuid, e.act()}
		changed, found := f.found[row]
		if e.id < msg.id && e.pending() && found && changed == e.acted && !f.success[row] {
			f.m.failf("row %d is published before row %v, which a read found requeued", r.ID, e)
		}
	}
}

// publisher advances a call: it reaches the broker, or it returns.
func (f *forwarder) publisher() {
	if len(f.calls) == 0 {
		return
	}
	c := f.calls[f.m.rng.IntN(len(f.calls))]
	switch {
	case f.m.landsEarly && !c.landed && f.m.chance(10):
		f.land(c)
	case c.expired && f.m.chance(50):
		f.timeOut(c)
	case f.m.chance(f.m.slow) && !f.m.finishing: // it is slow
	case c.Row.Topic == f.m.hungTopic && !f.m.revived && !f.coordinator.Stopping():
	default:
		f.returns(c)
	}
}

func (f *forwarder) land(c *call) {
	c.landed = true
	f.logf("sends %d (%s)", c.Row.ID, c.Row.UUID)
	c.msg.resent = c.msg.batch // even if it belongs to an earlier attempt
	f.m.landed(c.msg)
}

// timeOut reports to the dispatcher that a call took too long.
func (f *forwarder) timeOut(c *call) {
	res := dispatch.Result{Verdict: dispatch.Retry, Err: errTimeout}
	switch {
	case f.m.blind:
		res = dispatch.Result{Verdict: dispatch.Unknown, Err: errUnknown}
	case f.m.chance(30):
		res.Verdict = dispatch.Unavailable
	case f.m.chance(5):
		res.Verdict = dispatch.Permanent
	}
	f.logf("times out %d (%s), %v", c.Row.ID, c.Row.UUID, res.Verdict)
	if len(f.coordinator.Expiring([]*dispatch.Call{c.Call})) == 0 {
		f.m.failf("forwarder %d: row %d has not returned, but the dispatcher does not time it out", f.id, c.Row.ID)
	}
	c.expired, c.timedOut = false, true
	f.tell(c, res, false)
	f.coordinator.TimedOut(f.m.db.now, c.Call, res)
	if f.m.variant.timeOutTwice {
		c.Revive(true)
		f.coordinator.TimedOut(f.m.db.now, c.Call, res)
	}
	f.spoilBlocked()
	f.take()
}

func (f *forwarder) spoilBlocked() {
	if f.m.variant.heldOnceSettled {
		f.dispatcher.ForgetBlocked()
	}
}

func (f *forwarder) returns(c *call) {
	var res dispatch.Result
	switch p := f.m.rng.IntN(100); {
	case c.Row.Topic == f.m.deadTopic && !f.m.revived && f.m.blind:
		res = dispatch.Result{Verdict: dispatch.Unknown, Err: errUnknown}
	case c.Row.Topic == f.m.deadTopic && !f.m.revived:
		res = dispatch.Result{Verdict: dispatch.Unavailable, Err: errUnavailable}
	case f.m.finishing && !f.m.chance(10): // most succeed in the end
	case (f.coordinator.Stopping() || c.recalled) && !c.landed && p < 30:
		res = dispatch.Result{Verdict: dispatch.Aborted, Err: errRejected}
	case p < f.m.rejects && f.m.blind:
		res = dispatch.Result{Verdict: dispatch.Unknown, Err: errUnknown}
	case p < f.m.rejects:
		res = dispatch.Result{Verdict: dispatch.Retry, Err: errRejected, Snooze: c.Row.ID%4 == 0}
	case p < f.m.rejects+f.m.unavailable:
		res = dispatch.Result{Verdict: dispatch.Unavailable, Err: errUnavailable}
	case p < f.m.rejects+f.m.unavailable+2:
		res = dispatch.Result{Verdict: dispatch.Permanent, Err: errRejected}
	}
	if res.Verdict == dispatch.OK && !c.landed {
		f.land(c)
	}
	f.logf("returns from %d (%s): %v, late %v", c.Row.ID, c.Row.UUID, res.Verdict, c.timedOut)
	f.calls = slices.DeleteFunc(f.calls, func(o *call) bool { return o == c })
	f.tell(c, res, c.timedOut)
	switch late := c.timedOut; {
	case late && f.m.variant.lateSuccessIgnored:
		res = dispatch.Result{Verdict: dispatch.Retry, Err: errRejected}
	case late && f.m.variant.lateErrorCharged && res.Verdict == dispatch.Retry:
		c.Revive(true)
	}
	var next *dispatch.Call
	if res = f.m.variant.spoilVerdict(res); f.m.tight {
		next = f.coordinator.Next(f.m.db.now, c.Call, res, &call{}, false)
	} else {
		f.coordinator.WorkerEnded(f.m.db.now, c.Call, res)
	}
	f.spoilBlocked()
	f.take()
	if c.expired { // the request to end it comes too late
		if len(f.coordinator.Expiring([]*dispatch.Call{c.Call})) > 0 && !f.m.variant.timeOutTwice {
			f.m.failf("forwarder %d: the dispatcher times out row %d, which has returned", f.id, c.Row.ID)
		}
		f.coordinator.TimedOut(f.m.db.now, c.Call, dispatch.Result{Verdict: dispatch.Retry, Err: errTimeout})
		f.take()
	}
	if next != nil {
		f.started(next)
	}
}

// tell records how the dispatcher must handle a call.
func (f *forwarder) tell(c *call, res dispatch.Result, late bool) {
	t := f.told[c.Row]
	if t == nil {
		t = &telling{}
		f.told[c.Row] = t
	}
	if at := f.answered(c, res, late); !late {
		t.at = at
	}
	switch res.Verdict {
	case dispatch.Unknown:
		if t.unknown = t.unknown || !late; !late {
			f.lastFailed = c.Row
		}
	case dispatch.OK:
		t.ok = true
		f.unsettled[c.Row] = true
		f.success[of(c.Row)] = true
		c.msg.accepted = true
	case dispatch.Retry, dispatch.Permanent:
		if t.failed = t.failed || !late; !late {
			f.lastFailed = c.Row
		}
	}
}
