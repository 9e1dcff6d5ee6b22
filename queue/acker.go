package queue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

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

func (a *acker) run() {
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
			a.ack(batch, &report)
		}
	}
}

// ack repeats what fails as long as leases last, which are renewed meanwhile; when the loop stops it tries a little
// longer.
func (a *acker) ack(batch []*claimed, report *trouble.Log) {
	byID := make(map[ID]*claimed, len(batch))
	for _, c := range batch {
		byID[c.ID] = c
	}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 2*time.Second
	begun := time.Now()
	for {
		ctx, cancel := context.WithTimeout(a.loop.base, queryTimeout)
		ids := slices.Collect(maps.Keys(byID))
		n, err := a.loop.store.Ack(ctx, a.loop.owner, ids...)
		cancel()
		var stopping bool
		a.loop.step(func() { stopping = a.loop.stopping })
		refused, err := refusedOf(err)
		for _, id := range refused.ids {
			if a.later(byID[id], refused.first, stopping) {
				delete(byID, id)
			}
		}
		report.Tell(err)
		if lost := len(ids) - len(refused.ids) - n; err == nil && lost > 0 {
			a.loop.logger.Debug("leases lost before the ack: nothing changed", watermill.LogFields{"messages": lost})
		}
		if err == nil || stopping && time.Since(begun) > queryTimeout {
			break
		}
		time.Sleep(retry.NextBackOff())
	}
	a.loop.step(func() { a.loop.forget(slices.Collect(maps.Values(byID))...) })
}

// later acks a message again after a wait that the database has refused to mark done: its handler has returned and must
// not be called again. Meanwhile its lease is renewed. It returns false if nothing will ack it.
func (a *acker) later(c *claimed, err error, stopping bool) bool {
	wait, ok := a.loop.store.refused("ack", queueRow{ID: c.ID, topic: c.Topic}, err)
	if ok = ok && !stopping; ok {
		time.AfterFunc(wait, func() { a.add(c) })
	}
	return ok
}
