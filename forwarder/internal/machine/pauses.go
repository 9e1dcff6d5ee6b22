package machine

import (
	"maps"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

// Pause is the board's report of a paused topic.
type Pause struct {
	Since    time.Time // the first failure
	Failures int
	Err      error // the last
}

// notePauses remembers what reports contain about paused topics.
func (m *Machine) notePauses(now time.Time, reports []board.Report) {
	for _, r := range reports {
		if r.ByOperator {
			continue // that is already in the database
		}
		switch r.Kind {
		case board.TopicPaused:
			p, ok := m.paused[r.Topic]
			if !ok {
				p.Since = now
			}
			p.Failures, p.Err = r.Failures, r.Err
			m.paused[r.Topic] = p
		case board.TopicResumed:
			delete(m.paused, r.Topic)
		}
	}
}

// Paused returns the paused topics, without those that only an operator has paused.
func (m *Machine) Paused() map[string]Pause { return maps.Clone(m.paused) }

// Hold applies the list of topics that an operator has paused.
func (m *Machine) Hold(now time.Time, topics []string) { m.board.PauseByOperator(now, topics) }
