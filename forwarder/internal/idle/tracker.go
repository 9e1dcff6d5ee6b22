// Package idle remembers, for an outbox that no forwarder is reading, whether something may have been written since the
// last poll. It is pure.
//
// The number up to which ids were assigned moves before their rows are visible, and a row appears when its transaction
// commits, without the number moving again. So a number is remembered only after a poll that began when every
// transaction had ended that may have taken an id up to it: each takes its transaction id before its row ids, so those
// are the transactions below the next transaction id at the time when the number was read. The highest completed id
// would not suffice: a transaction above it may be in progress and may already have taken a row id.
package idle

import "time"

// Poll is the result of a poll.
type Poll struct {
	Number int64         // ids up to here were assigned
	Oldest int64         // the lowest transaction id in progress
	Next   int64         // the next transaction id to be assigned, read after Number
	Ready  bool          // there is something above Tracker.Number, or at all if everything was polled
	Due    time.Duration // until the next message is due; negative = nothing waits
	All    bool          // everything was polled
}

// Tracker remembers earlier polls. The zero value is empty.
type Tracker struct {
	known  bool
	number int64 // nothing up to it is ready, as far as polls can see
	// The next number to remember, and the transaction id that all transactions must have reached first.
	waits      bool
	next, till int64
}

// Number returns the remembered number, if there is one.
func (m *Tracker) Number() (number int64, known bool) { return m.number, m.known }

// Polled applies a poll that was made with Number, and reports whether there is work.
func (m *Tracker) Polled(l Poll) (work bool) {
	if m.known && l.Number < m.number { // another incarnation of the sequence
		*m = Tracker{}
		if !l.All {
			return false // the next poll is of everything
		}
	}
	if l.Ready || l.Due == 0 {
		return true
	}
	if !m.known && !l.All {
		return false
	}
	if m.waits && l.Oldest >= m.till {
		m.known, m.number, m.waits = true, m.next, false
	}
	switch {
	case m.known && l.Number == m.number:
	case l.Oldest >= l.Next: // no transaction is in progress
		m.known, m.number, m.waits = true, l.Number, false
	case !m.waits:
		m.waits, m.next, m.till = true, l.Number, l.Next
	}
	return false
}
