package machine

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// Turn is a worker's: it tells what became of its call, if it had one, and returns the next, with tag as its Tag; nil
// if none may start now, and the worker ends. first says that the worker was just started. It happens once for each
// message.
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

// WorkerEnded tells what became of the call of a worker whose goroutine was ended by somebody's code.
func (m *Machine) WorkerEnded(now time.Time, done *board.Call, r board.Result) {
	m.board.Returned(now, done, r)
}

// Expiring looks which calls that Effects.Expired named have not returned meanwhile.
func (m *Machine) Expiring(calls []*board.Call) (still []*board.Call) {
	for _, c := range calls {
		if c.Expired() {
			still = append(still, c)
		}
	}
	return still
}

// UnderWay looks which calls have not returned, hung ones too.
func (m *Machine) UnderWay() []*board.Call { return m.board.UnderWay() }

// TimedOut takes the verdict on a call that Effects.Expired named. It counts for nothing if the call has returned
// meanwhile.
func (m *Machine) TimedOut(now time.Time, c *board.Call, r board.Result) { m.board.TimedOut(now, c, r) }

// Tick is the timer's, and says for how long it is to rest.
func (m *Machine) Tick(now time.Time) (rest time.Duration) {
	m.board.Tick(now)
	m.tickAt = now.Add(time.Hour)
	if at, _ := m.board.Due(); !at.IsZero() && at.Before(m.tickAt) {
		m.tickAt = at
	}
	return max(0, m.tickAt.Sub(now))
}
