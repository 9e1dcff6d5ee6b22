package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/queue"
)

// goesOn waits until a number is reached, failing when it does not grow within patience.
func goesOn(t testing.TB, what string, most int, now func() int) {
	t.Helper()
	for n := now(); n < most; n = now() {
		eventually(t, func() bool { return now() > n }, "%s: %d of %d do", what, n, most)
	}
}

// Many databases, of which one cannot be reached, one has stopped replying, and some come and go: those two delay no
// other, and nothing is lost. OUTBOX_LONG has 200 schemas.
func TestFleetManyDatabases(t *testing.T) {
	parallel(t)
	all := append(newTenants(t, "alone", 0), newTenants(t, "shared", rounds(8, 200))...)
	hung := newTenants(t, "hung", 0)[0]
	proxy := newProxy(t, hung.DSN)
	hung.DSN = proxy.url
	r := newRegistry(append(targetsOf(append(all, hung)...), fleet.Target{Key: "away", DSN: newSilentServer(t)})...)
	broker, log := newFakeBroker(), newLogCapture(t)
	cfg := quickGroup()
	cfg.Forwarder.QueryTimeout = time.Hour // whoever waits for the hung database waits longer than this test
	f := runFleet(t, r.Discover, fleet.Config{RefreshInterval: 50 * time.Millisecond, MaxConns: 8}, log)
	runGroup(t, f, broker, cfg, log)
	hung.publish(t, "events", "", "before")
	broker.arrives(t, "before")
	eventually(t, func() bool { return hung.asleep(t) }, "it sleeps")
	waits := proxy.waits.Load()
	proxy.delay.Store(int64(time.Hour))
	eventually(t, func() bool { return proxy.waits.Load() > waits }, "a poll waits for a reply")
	hung.publish(t, "events", "", "meanwhile")

	for _, gone := range all[2:5] {
		r.remove(gone.Key)
		eventually(t, func() bool { _, err := f.Get(gone.Key); return errors.Is(err, fleet.ErrUnknownDatabase) },
			"the target is removed")
		var payloads []string
		for _, who := range all {
			payloads = append(payloads, fmt.Sprint(who.Key, " without ", gone.Key))
			who.publish(t, "events", "", payloads[len(payloads)-1])
		}
		r.add(gone.Target)
		broker.arrives(t, payloads...)
	}
	assert.Zero(t, broker.triedTimes("meanwhile"))
	eventually(t, func() bool { return log.count("polling a database failed") > 0 }, "the failed poll is in the log")
	proxy.delay.Store(0)
	proxy.cut()
	broker.arrives(t, "meanwhile")
	for _, who := range append(all, hung) {
		eventually(t, func() bool { return who.pendingIn(t) == 0 }, "%s: all is settled", who.Key)
	}
}

// The handlers of a queue.Group leave connections of a pool to others, even of a pool with only four: while all
// handlers hang, leases are renewed and the outboxes of the same databases are drained.
func TestHandlersOfAGroupLeaveConnectionsOfAPool(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 6)
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConnsPerDSN: 4}, nil)
	g := newBarrier(t)
	at := limit{t: t, what: "handlers of a pool of 4", most: 2}
	log := newLogCapture(t)
	var h handledLog
	cfg := quickQueueGroup(&h)
	cfg.Dispatcher.LeaseTTL = 3 * time.Second // a third of it is the limit of a renewal, also on a busy machine
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

// The idle schemas of a DSN are polled with one statement and have no goroutines of their own. Messages stored by
// another process, due ones and changed ones are still found.
func TestAQueueGroupPollsAllSchemasTogether(t *testing.T) {
	parallel(t)
	const schemas = 10
	all := newTenants(t, "one", schemas)
	var h handledLog
	cfg := quickQueueGroup(&h)
	cfg.Dispatcher.PollInterval = 50 * time.Millisecond
	cfg.Dispatcher.CleanInterval = time.Hour
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConnsPerDSN: 10}, nil)
	_, g := runQueueGroup(t, f, cfg, nil)
	stores := storesOf(t, all...)
	atRest := func() {
		t.Helper()
		eventually(t, func() bool { return !strings.Contains(strings.Join(goroutinesOf(t), ""), "queue.(*loop).renew") },
			"all are at rest")
	}
	atRest()
	one := all[0]
	running := func() (n, polls int) { // counts last statements of the group's connections that began during the call
		now := value[time.Time](t, one.handle, "SELECT clock_timestamp()")
		seen := map[string]bool{}
		eventually(t, func() bool {
			for _, query := range strings.Split(value[string](t, one.handle, `SELECT coalesce(string_agg(query_start::text || '|' || query, '~'), '') FROM pg_stat_activity
				WHERE datname = current_database() AND query_start > $1 AND application_name LIKE 'fleet-%'`, now), "~") {
				if query != "" {
					seen[query] = true
				}
			}
			polls = 0
			for query := range seen {
				if strings.Contains(query, "pg_stat_get_tuples_updated") {
					polls++
				}
			}
			return polls >= 3
		}, "it is polled")
		return len(seen), polls
	}
	eventually(t, func() bool { // databases may just have been added
		n, polls := running()
		return n-polls <= 2
	}, "few statements besides the polls of all schemas")

	for i, s := range stores {
		enqueue(t, s, "new")
		eventually(t, func() bool { return len(h.handled()) == i+1 }, "%d is found", i)
	}
	atRest()
	storeAll(t, stores[1], queue.Item{
		ID: queue.ID{Source: "test", MessageID: "due"}, Topic: "events", DueAt: time.Now().Add(2 * time.Second),
	})
	end := openTx(t, all[2].handle, func(ctx context.Context) error {
		_, err := stores[2].Enqueue(ctx, queue.Item{ID: queue.ID{Source: "test", MessageID: "late"}, Topic: "events"})
		return err
	})
	eventually(t, func() bool { return len(h.handled()) == schemas+1 }, "due messages are found")
	end(true)
	eventually(t, func() bool { return len(h.handled()) == schemas+2 }, "late commits are found")
	atRest()
	_, err := stores[3].AlreadyProcessed(t.Context(), queue.ID{Source: "test", MessageID: "seen"}, nil)
	require.NoError(t, err)
	atRest()
	enqueue(t, stores[3], "seen")
	eventually(t, func() bool { return len(h.handled()) == schemas+3 }, "changed messages are found")
	atRest()
	drained := make(chan error, 1)
	enqueue(t, stores[4], "drained")
	go func() { drained <- g.Drain(t.Context()) }()
	require.NoError(t, within(t, "it is drained", drained))
	assert.Contains(t, h.handled(), fmt.Sprint(all[4].Key, " drained"))
	require.NoError(t, g.Close())
}
