package queue

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// renew renews the leases of messages that are being handled, until ctx ends. The statement skips locked rows, such as
// those acked in a handler's transaction, but they are still requested: if the transaction is rolled back, the handler
// may be repeated after a wait.
func (l *loop) renew(ctx context.Context) {
	// Cause: the database.
	// Cure: messages whose leases expire are delivered to others.
	report := trouble.RetryLog{Logger: l.logger, What: "renewing leases"}
	tick := time.NewTicker(l.cfg.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			report.Report(l.renewOnce(ctx))
		}
	}
}

func (l *loop) renewOnce(ctx context.Context) error {
	begun := time.Now()
	held := map[ID]*claimed{}
	var ids []ID
	l.step(func() {
		for id, c := range l.claimed {
			if !l.store.refusals.waits("renew", id, begun) {
				held[id] = c
				ids = append(ids, id)
			}
		}
	})
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.lease/3)
	defer cancel()
	ours, err := l.store.Renew(ctx, l.owner, l.cfg.lease, ids...)
	refused, err := refusedOf(err)
	l.store.refusals.forget("renew", ours...)
	for _, id := range ours {
		held[id].extend(begun.Add(l.cfg.lease))
		delete(held, id)
	}
	for _, id := range refused.ids {
		if c := held[id]; c != nil { // otherwise it was renewed together with others before it was refused alone
			l.store.refused("renew", queueRow{ID: id, topic: c.Topic}, refused.first)
			delete(held, id)
		}
	}
	if err != nil {
		return err
	}
	return l.notRenewed(ctx, held)
}

// notRenewed ends the contexts of messages that no longer have our owner. The others were settled meanwhile, or another
// transaction has locked their rows, and a later renewal may succeed.
func (l *loop) notRenewed(ctx context.Context, unrenewed map[ID]*claimed) error {
	l.step(func() {
		maps.DeleteFunc(unrenewed, func(_ ID, c *claimed) bool { return c.acking || c.locked.Load() })
	})
	if len(unrenewed) == 0 {
		return nil
	}
	sources, messageIDs, err := split("Renew", l.owner, slices.Collect(maps.Keys(unrenewed)))
	if err != nil {
		return err
	}
	still, err := l.store.stillHeld(ctx, "renew leases", l.owner, sources, messageIDs, nil)
	if err != nil {
		return err
	}
	for _, id := range still {
		delete(unrenewed, id)
	}
	for _, c := range unrenewed {
		c.expire()
	}
	return nil
}
