package queue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// maxAcks is how many messages one statement acks.
const maxAcks = 1000

// acker is the goroutine that acks messages whose handlers have returned, all that have come together since its last
// statement at once.
type acker struct {
	loop  *loop
	queue chan *claimed
	done  chan struct{} // closed when run has returned
}

func newAcker(l *loop, room int) *acker {
	return &acker{loop: l, queue: make(chan *claimed, room), done: make(chan struct{})}
}

// add waits while there is no room, so that no more is claimed than can be acked. It does nothing for a handler that
// has outlived the loop.
func (a *acker) add(c *claimed) {
	select {
	case a.queue <- c:
	case <-a.done:
	}
}

// stop ends run when it has acked what was added.
func (a *acker) stop() { a.queue <- nil }

// run stops retrying when ctx is over.
func (a *acker) run(ctx context.Context) {
	defer close(a.done)
	// Cause: the database.
	// Cure: messages whose leases expire first are redelivered.
	report := trouble.Log{Logger: a.loop.logger, What: "acking messages"}
	for over := false; !over; {
		var batch []*claimed
		for first := <-a.queue; ; first = <-a.queue {
			if first == nil {
				over = true
			} else {
				batch = append(batch, first)
			}
			if over || len(batch) == maxAcks || len(a.queue) == 0 {
				break
			}
		}
		if len(batch) > 0 {
			a.ack(ctx, batch, &report)
		}
	}
}

// ack repeats what fails until ctx is over. Leases are renewed meanwhile.
func (a *acker) ack(ctx context.Context, batch []*claimed, report *trouble.Log) {
	byID := make(map[ID]*claimed, len(batch))
	for _, c := range batch {
		byID[c.ID] = c
	}
	_ = retry(ctx, func(ctx context.Context) error {
		ids := slices.Collect(maps.Keys(byID))
		n, err := a.loop.store.Ack(ctx, a.loop.owner, ids...)
		refused, err := refusedOf(err)
		for _, id := range refused.ids {
			if a.later(byID[id], refused.first) {
				delete(byID, id)
			}
		}
		if err == nil {
			a.loop.store.refusals.forget("ack", slices.Collect(maps.Keys(byID))...)
		}
		report.Tell(err)
		if lost := len(ids) - len(refused.ids) - n; err == nil && lost > 0 {
			a.loop.logger.Debug("leases lost before the ack: nothing changed", watermill.LogFields{"messages": lost})
		}
		return err
	})
	a.loop.step(func() { a.loop.forget(slices.Collect(maps.Values(byID))...) })
}

// later acks a message again after a wait that the database has refused to mark done: its handler has returned and must
// not be called again. Meanwhile its lease is renewed. It returns false if nothing will ack it.
func (a *acker) later(c *claimed, err error) bool {
	wait, ok := a.loop.store.refused("ack", queueRow{ID: c.ID, topic: c.Topic}, err)
	a.loop.step(func() { ok = ok && !a.loop.stopping })
	if ok {
		time.AfterFunc(wait, func() { a.add(c) })
	}
	return ok
}
