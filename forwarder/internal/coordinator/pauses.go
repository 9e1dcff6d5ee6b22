package coordinator

import (
	"maps"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// Pause is the dispatcher's report of a paused topic.
type Pause struct {
	Since    time.Time // the first failure
	Failures int
	Err      error // the last
}

// rememberPauses keeps the paused topics of reports.
func (c *Coordinator) rememberPauses(now time.Time, reports []dispatch.Report) {
	for _, r := range reports {
		if r.ByOperator {
			continue // that is already in the database
		}
		switch r.Kind {
		case dispatch.TopicPaused:
			p, ok := c.paused[r.Topic]
			if !ok {
				p.Since = now
			}
			p.Failures, p.Err = r.Failures, r.Err
			c.paused[r.Topic] = p
		case dispatch.TopicResumed:
			delete(c.paused, r.Topic)
		}
	}
}

// Paused returns the paused topics, without those that only an operator has paused.
func (c *Coordinator) Paused() map[string]Pause { return maps.Clone(c.paused) }

// PauseByOperator applies the list of topics that an operator has paused.
func (c *Coordinator) PauseByOperator(now time.Time, topics []string) {
	c.dispatcher.PauseByOperator(now, topics)
}
