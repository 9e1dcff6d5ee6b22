package kafka

import (
	"time"

	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/meter"
)

// regulate pauses the partition at its limits and resumes it at half of them. The limit on bytes covers all partitions
// together, but a partition with nothing in memory is always read, so that none starves. A partition is also paused
// while its handlers hang.
func (p *partition) regulate() {
	stalled := inbound.Stalled(p.pause, p.window, p.running)
	switch {
	case p.stopped:
	case p.pause.Since.IsZero() && stalled:
		p.pause.Since = p.pause.Active
		p.group.Pause(p.here)
	case p.pause.Since.IsZero() && (p.window.Full() || p.budget.exhausted() && p.window.Undone() > 0):
		p.pause.Since = time.Now()
		p.group.Pause(p.here)
	case !p.pause.Since.IsZero() && !stalled && p.window.HalfEmpty() && (p.budget.half() || p.window.Undone() == 0):
		p.pause.Since = time.Time{}
		p.group.Resume(p.here)
	}
}

// report passes the state of the partition to observers.
func (p *partition) report(owned bool) {
	state := meter.PartitionState{
		Group: p.cfg.ConsumerGroup, Topic: p.claim.Topic(), Partition: p.claim.Partition(), Owned: owned,
	}
	if owned {
		state.Lag = p.lag()
		state = inbound.Describe(state, p.window, record.lastError, p.running, p.pause, !p.window.HalfEmpty(), "offset",
			&p.lines, p.logger)
	}
	p.reports.Post(state)
}
