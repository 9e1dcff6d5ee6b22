package queue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// acker acks messages whose handlers have returned.
type acker struct {
	loop    *loop
	ctx     context.Context // ends the retries
	report  trouble.RetryLog
	batcher *batcher[*claimed]
}

// newAcker makes an acker that holds at most room messages; then add blocks, so that claims do not outrun acks.
func newAcker(ctx context.Context, l *loop, room int) *acker {
	// Cause: the database.
	// Cure: messages whose leases expire first are redelivered.
	a := &acker{loop: l, ctx: ctx, report: trouble.RetryLog{Logger: l.logger, What: "acking messages"}}
	a.batcher = newBatcher(room, a.ack)
	return a
}

// ack repeats failed acks until ctx ends. Meanwhile their leases are renewed.
func (a *acker) ack(batch []*claimed) {
	byID := make(map[ID]*claimed, len(batch))
	for _, c := range batch {
		byID[c.ID] = c
	}
	_ = retryStatement(a.ctx, func(ctx context.Context) error {
		ids := slices.Collect(maps.Keys(byID))
		n := 0
		err := guarded(func() (err error) { // a logger, or a tracer of pgx, may panic
			n, err = a.loop.store.Ack(ctx, a.loop.owner, ids...)
			return err
		})
		refused, err := refusedOf(err)
		for _, id := range refused.ids {
			if a.retryLater(byID[id], refused.first) {
				delete(byID, id)
			}
		}
		if err == nil {
			a.loop.store.refusals.forget("ack", slices.Collect(maps.Keys(byID))...)
		}
		a.report.Report(err)
		if lost := len(ids) - len(refused.ids) - n; err == nil && lost > 0 {
			a.loop.logger.Debug("leases lost before the ack: nothing changed", watermill.LogFields{"messages": lost})
		}
		return err
	})
	a.loop.step(func() { a.loop.forget(slices.Collect(maps.Values(byID))...) })
}

// retryLater acks a message again after a wait when the database refused to mark it done: its handler has returned and
// must not be called again. Meanwhile its lease is renewed. It returns false if the message is not going to be acked.
func (a *acker) retryLater(c *claimed, err error) bool {
	wait, ok := a.loop.store.refused("ack", queueRow{ID: c.ID, topic: c.Topic}, err)
	a.loop.step(func() { ok = ok && !a.loop.stopping })
	if ok {
		time.AfterFunc(wait, func() { a.batcher.add(c) })
	}
	return ok
}
