package machine

import (
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// Results returns results to be settled, up to a limit; each is handed out once.
func (m *Machine) Results(most int) (published []*board.Row, failed []board.Failure) {
	return m.board.Results(most)
}

// Life returns the incarnation of server and sequence of the last read, and the value of the sequence then.
func (m *Machine) Life() (life string, seq int64) { return m.window.Life() }

// Settled applies results that are now in the database. A failure that was fenced ends its term: the lane has another
// owner.
func (m *Machine) Settled(now time.Time, published []*board.Row, failed []board.Outcome) {
	m.board.Settled(now, published, failed)
	for _, o := range failed {
		if t := o.Row.Term; o.Kind == board.Fenced && m.lanes[t.Lane].Epoch == t.Epoch {
			m.lose([]board.Term{t})
			m.effects.Wake |= WakeKeeper
		}
	}
	if len(m.drains) > 0 {
		m.reads.dirty = true
		m.effects.Wake |= WakeReader
	}
}

// Unsettled drops results that were given up at the end.
func (m *Machine) Unsettled(published []*board.Row, failed []board.Failure) {
	m.board.Unsettled(published, failed)
}
