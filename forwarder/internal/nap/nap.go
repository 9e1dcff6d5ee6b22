// Package nap remembers of an outbox that no forwarder reads whether something may have been written since the last
// read. It is pure.
//
// The number up to which ids were handed out moves before their rows are visible, and a row appears when its
// transaction commits, without the number moving again. So a number is remembered only after a look that began when
// every transaction had ended that may have taken an id up to it: each takes its transaction id before its row ids, so
// they are those below the next transaction id of when the number was read. The highest id that has completed would not
// do: a transaction above it may be in progress and have taken a row id already.
package nap

import "time"

// Look is what a look found.
type Look struct {
	Number int64         // up to which ids are handed out
	Oldest int64         // the lowest transaction id in progress
	Next   int64         // the next one to be assigned, read after Number
	Ready  bool          // there is something above Memory.Number, or at all if everything was looked at
	Due    time.Duration // until something falls due; negative = nothing waits
	All    bool          // everything was looked at
}

// Memory is what is remembered. The zero value knows nothing.
type Memory struct {
	known  bool
	number int64 // nothing up to it is ready, as far as looks can tell
	// The number to be remembered next, and the transaction id that all must have reached for that.
	waits      bool
	next, till int64
}

// Number returns the number that is remembered, if one is.
func (m *Memory) Number() (number int64, known bool) { return m.number, m.known }

// Looked takes over a look that was asked with Number, and says whether there is work.
func (m *Memory) Looked(l Look) (work bool) {
	if m.known && l.Number < m.number { // another life of the sequence
		*m = Memory{}
		if !l.All {
			return false // and the next look is at everything
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
	case l.Oldest >= l.Next: // nothing is in progress
		m.known, m.number, m.waits = true, l.Number, false
	case !m.waits:
		m.waits, m.next, m.till = true, l.Number, l.Next
	}
	return false
}
