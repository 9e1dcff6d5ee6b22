package inbound

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/meter"
)

// record keeps a partition while it is paused because a message keeps failing or handlers hang.
func (r *Reports) record(state meter.PartitionState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocked == nil {
		return
	}
	id := fmt.Sprint(state.Topic, " ", state.Partition)
	hung := state.Paused == meter.PausedByHungHandlers
	if !state.Owned || !hung && state.Paused != meter.PausedByBlockedKey {
		delete(r.blocked, id)
		return
	}
	now := time.Now()
	p := facts.Partition{
		Group: state.Group, Topic: state.Topic, Partition: state.Partition, Keys: state.BlockedKeys, Lag: state.Lag,
		Since:   now.Add(-state.PausedFor).Round(time.Second).UTC(),
		Failing: now.Add(-state.OldestBlocked).Round(time.Second).UTC(), Hung: hung,
	}
	r.blocked[id] = p
}

// Blocked implements core.Source.
func (r *Reports) Blocked() (partitions []facts.Partition, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(r.blocked)) {
		partitions = append(partitions, r.blocked[id])
	}
	return partitions, r.blocked == nil
}
