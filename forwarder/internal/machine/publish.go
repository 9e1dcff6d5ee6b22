package machine

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// Turn is called by a worker for each message: it reports the result of its call, if it had one, and returns the next,
// with tag as its Tag; nil if none may start now, and the worker ends. first means that the worker was just started.
func (m *Machine) Turn(now time.Time, done *board.Call, r board.Result, tag any, first bool) *board.Call {
	if first {
		m.starting--
	}
	if done != nil {
		m.board.Returned(now, done, r)
	}
	if !now.Before(m.leaseUntil) {
		return nil
	}
	return m.board.Next(now, tag)
}

// WorkerEnded reports the result of the call of a worker whose goroutine was ended by user code.
func (m *Machine) WorkerEnded(now time.Time, done *board.Call, r board.Result) {
	m.board.Returned(now, done, r)
}

// Expiring returns those calls of Effects.Expired that have not returned in the meantime.
func (m *Machine) Expiring(calls []*board.Call) (still []*board.Call) {
	for _, c := range calls {
		if c.Expired() {
			still = append(still, c)
		}
	}
	return still
}

// InFlight returns the calls that have not returned, including hung ones.
func (m *Machine) InFlight() []*board.Call { return m.board.InFlight() }

// TimedOut applies the verdict on a call that Effects.Expired listed. It is ignored if the call has returned in the
// meantime.
func (m *Machine) TimedOut(now time.Time, c *board.Call, r board.Result) { m.board.TimedOut(now, c, r) }

// Tick is called by the timer, and returns how long the timer sleeps.
func (m *Machine) Tick(now time.Time) (rest time.Duration) {
	m.board.Tick(now)
	m.tickAt = now.Add(time.Hour)
	if at, _ := m.board.Due(); !at.IsZero() && at.Before(m.tickAt) {
		m.tickAt = at
	}
	return max(0, m.tickAt.Sub(now))
}
