package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/queue"
)

// The handlers of a queue.Group leave connections of a pool to others, also if it has but four: while all that may run
// hang, the leases are renewed and the outboxes of the same databases are drained.
func TestHandlersOfAGroupLeaveConnectionsOfAPool(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	all := newTenants(t, "one", 6)
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConnsPerDSN: 4}, nil)
	g := newBarrier(t)
	at := limit{t: t, what: "handlers of a pool of 4", most: 2}
	log := newLogCapture(t)
	var h handledLog
	cfg := quickQueueGroup(&h)
	cfg.Dispatcher.LeaseTTL = time.Second
	cfg.Dispatcher.Handlers["events"] = queue.Handler{
		Timeout: -1, Handle: func(ctx context.Context, msg *queue.Message) error {
			at.enter()
			defer at.leave()
			return g.handle(ctx, msg)
		},
	}
	runQueueGroup(t, f, cfg, log)
	broker := newFakeBroker()
	runGroup(t, f, broker, quickGroup(), log)
	for i, s := range storesOf(t, all...) {
		enqueue(t, s, itoa(i), "more")
	}
	for range 2 {
		g.await(t)
	}
	pub, err := outbox.NewPublisher(all[5].db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, pub.Publish("events", newMessage("beside "+itoa(i))))
		broker.arrives(t, "beside "+itoa(i))
	}
	g.open()
	eventually(t, func() bool {
		done := 0
		for _, who := range all {
			done += who.count(t, "SELECT count(*) FROM "+who.table("inbox_queue")+" WHERE state = 'done' AND attempts = 0")
		}
		return done == 2*len(all)
	}, "all are handled, at the first attempt")
	assert.Zero(t, log.count("renewing leases failed"))
}
