package kafka

import (
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/observe"
)

// report tells how the partition is.
func (p *partition) report(owned bool) {
	state := observe.PartitionState{
		Group: p.cfg.ConsumerGroup, Topic: p.claim.Topic(), Partition: p.claim.Partition(), Owned: owned,
	}
	if owned {
		p.tellPaused()
		state.Lag = p.lag()
		state = inbound.Describe(state, p.window, p.running, p.paused, p.reason)
	}
	p.reports.Post(state)
}
