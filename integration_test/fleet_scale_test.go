package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder"
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

// TestFleetScale measures how long messages of another process take through both Groups, in schemas that share a DSN.
// OUTBOX_LONG measures 20, 100 and 400 schemas, with pools of 4 and 16 connections.
func TestFleetScale(t *testing.T) {
	extended(t)
	noLeaks(t)
	sizes, pools := []int{8}, []int{4}
	if long {
		sizes, pools = []int{20, 100, 400}, []int{4, 16}
	}
	all := newTenants(t, "scale", slices.Max(sizes))
	for _, n := range sizes {
		for _, conns := range pools {
			t.Run(fmt.Sprintf("%d schemas, %d connections", n, conns), func(sub *testing.T) {
				measureScale(sub, t, all[:n], conns, nil)
			})
		}
	}
}

// TestFleetScaleWithHungDatabases: databases that never answer leave the messages of 120 others at most three times as
// slow as they are without, before and after in the same run.
func TestFleetScaleWithHungDatabases(t *testing.T) {
	extended(t)
	if !long {
		t.Skip("it takes minutes: OUTBOX_LONG=1")
	}
	noLeaks(t)
	all := newTenants(t, "scale", 120)
	queued, forwarded := map[int]time.Duration{}, map[int]time.Duration{} // p99, by how many hang
	for i, hung := range []int{0, 2, 4, 0} {
		t.Run(fmt.Sprintf("%d: 120 schemas, %d hung databases", i, hung), func(sub *testing.T) {
			away := []fleet.Target{}
			for i := range hung {
				away = append(away, fleet.Target{Key: fmt.Sprint("hung-", i), DSN: newSilentServer(sub)})
			}
			q, f := measureScale(sub, t, all, 16, away)
			queued[hung], forwarded[hung] = max(queued[hung], q.p99), max(forwarded[hung], f.p99)
		})
	}
	for _, hung := range []int{2, 4} {
		assert.LessOrEqual(t, queued[hung], 3*queued[0], "queue, %d hung", hung)
		assert.LessOrEqual(t, forwarded[hung], 3*forwarded[0], "outbox, %d hung", hung)
	}
}

// slowestAnswer asks a server all the time until the function returned is called, which says how long the slowest
// answer took: what others waited for longer than that was not the machine's doing.
func slowestAnswer(t testing.TB, h handle) (slowest func() time.Duration) {
	conn, err := h.pool.Acquire(t.Context())
	require.NoError(t, err)
	over, result := make(chan struct{}), make(chan time.Duration, 1)
	stop := sync.OnceValue(func() time.Duration { close(over); return <-result })
	t.Cleanup(func() { stop() })
	go func() {
		defer conn.Release()
		const pause = 20 * time.Millisecond
		for most := time.Duration(0); ; {
			begun := time.Now()
			if _, err := conn.Exec(context.Background(), "SELECT 1"); err != nil {
				t.Error(err)
			}
			most = max(most, time.Since(begun))
			begun = time.Now()
			select {
			case <-over:
				result <- most
				return
			case <-time.After(pause):
				most = max(most, time.Since(begun)-pause) // it may be the process that stands still
			}
		}
	}()
	return stop
}

// measureScale returns how long messages took through the queue and the outbox of all, beside databases that never
// answer. It begins when all are at rest, or, if hung is not nil, when each has published a message.
func measureScale(t, labelled *testing.T, all []tenant, conns int, hung []fleet.Target) (queued, forwarded pace) {
	f := runFleet(t, fleet.Static(append(targetsOf(all...), hung...)...), fleet.Config{MaxConnsPerDSN: conns}, nil)
	log := newLogCapture(t)
	var mu sync.Mutex
	sent, took := map[string]time.Time{}, []time.Duration{}
	arrived := 0
	broker := newFakeBroker()
	runGroup(t, f, broker, forwarder.GroupConfig{}, log)
	runQueueGroup(t, f, queue.GroupConfig{Dispatcher: queue.DispatcherConfig{Handlers: map[string]queue.Handler{
		"events": {Handle: func(_ context.Context, msg *queue.Message) error {
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(sent[msg.DB+msg.MessageID]))
			arrived++
			return nil
		}},
	}}}, log)
	load := &traffic{sent: map[string]time.Time{}}
	switch {
	case hung != nil: // there is no rest then
		load.write(t, "warm", 1, 0, all...)
		load.arrives(t, broker)
	case long:
		untilRest(t, labelled, all)
	}
	round := time.Now().Format("150405.000")
	control := slowestAnswer(t, all[0].handle)
	stores := storesOf(t, all...)
	pause := 40 * time.Millisecond * time.Duration(len(all)) // 25 messages a second in each half
	const messages = 2
	var writers sync.WaitGroup
	writers.Go(func() { load.write(t, round, messages, pause, all...) })
	for k := range messages {
		for i, s := range stores {
			id := fmt.Sprint(round, " ", k)
			mu.Lock()
			sent[all[i].Key+id] = time.Now()
			mu.Unlock()
			enqueue(t, s, id)
			time.Sleep(pause / time.Duration(len(all))) // the pace of the load
		}
	}
	writers.Wait()
	load.arrives(t, broker)
	goesOn(t, "messages are handled", messages*len(all), func() int { mu.Lock(); defer mu.Unlock(); return arrived })
	slices.Sort(took)
	queued, forwarded = pace{took[len(took)/2], took[len(took)*99/100]}, load.paceOf(broker, round, all...)
	t.Logf("messages of another process, 25 a second in each half: queue %s; outbox %s", queued, forwarded)
	slowest := control()
	t.Logf("the slowest answer to somebody with a connection of its own took %s", slowest)
	troubles := []string{"renew", "claiming failed", "looking at", "draining the outbox failed"}
	if len(hung) > 0 { // of which these lines tell
		troubles = troubles[:1]
	}
	for _, bad := range troubles {
		if n := log.count(bad); slowest < time.Second {
			assert.Zero(t, n, bad)
		} else { // the machine stood still, and time-outs are its doing
			t.Logf("%d lines about %q", n, bad)
		}
	}
	return queued, forwarded
}
