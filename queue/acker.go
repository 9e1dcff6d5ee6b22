package queue

import (
	"context"
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
	ids := make([]ID, len(batch))
	for i, c := range batch {
		ids[i] = c.ID
	}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 2*time.Second
	begun := time.Now()
	for {
		ctx, cancel := context.WithTimeout(a.loop.base, queryTimeout)
		n, err := a.loop.store.Ack(ctx, a.loop.owner, ids...)
		cancel()
		report.Tell(err)
		var stopping bool
		a.loop.step(func() { stopping = a.loop.stopping })
		if err == nil && n < len(ids) {
			a.loop.logger.Debug("leases lost before the ack: nothing changed", watermill.LogFields{"messages": len(ids) - n})
		}
		if err == nil || stopping && time.Since(begun) > queryTimeout {
			break
		}
		time.Sleep(retry.NextBackOff())
	}
	a.loop.step(func() { a.loop.forget(batch...) })
}
