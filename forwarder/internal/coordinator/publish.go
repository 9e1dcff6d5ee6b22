package coordinator

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// Next is called by a worker for each message: it reports the result of its call, if it had one, and returns the next,
// with tag as its Tag; nil if none may start now, and the worker ends. first means that the worker was just started.
func (c *Coordinator) Next(now time.Time, done *dispatch.Call, r dispatch.Result, tag any, first bool) *dispatch.Call {
	if first {
		c.starting--
	}
	if done != nil {
		c.dispatcher.Returned(now, done, r)
	}
	if !now.Before(c.leaseUntil) {
		return nil
	}
	return c.dispatcher.Next(now, tag)
}

// WorkerEnded reports the result of the call of a worker whose goroutine was ended by user code.
func (c *Coordinator) WorkerEnded(now time.Time, done *dispatch.Call, r dispatch.Result) {
	c.dispatcher.Returned(now, done, r)
}

// Expiring returns those calls of Effects.Expired that have not returned in the meantime.
func (c *Coordinator) Expiring(calls []*dispatch.Call) (still []*dispatch.Call) {
	for _, call := range calls {
		if call.Expired() {
			still = append(still, call)
		}
	}
	return still
}

// InFlight returns the calls that have not returned, including hung ones.
func (c *Coordinator) InFlight() []*dispatch.Call { return c.dispatcher.InFlight() }

// TimedOut applies the verdict on a call that Effects.Expired listed. It is ignored if the call has returned in the
// meantime.
func (c *Coordinator) TimedOut(now time.Time, call *dispatch.Call, r dispatch.Result) {
	c.dispatcher.TimedOut(now, call, r)
}

// Tick is called by the timer, and returns how long the timer sleeps.
func (c *Coordinator) Tick(now time.Time) (rest time.Duration) {
	c.dispatcher.Tick(now)
	c.tickAt = now.Add(time.Hour)
	if at, _ := c.dispatcher.NextTimes(); !at.IsZero() && at.Before(c.tickAt) {
		c.tickAt = at
	}
	return max(0, c.tickAt.Sub(now))
}
