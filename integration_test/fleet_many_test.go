package integration_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// traffic writes to tenants and remembers when it wrote each message.
type traffic struct {
	mu   sync.Mutex
	sent map[string]time.Time // by payload, before the commit
}

// write publishes n messages per tenant, one per pause, as another process would.
func (tr *traffic) write(t testing.TB, phase string, n int, pause time.Duration, tenants ...tenant) {
	var writers sync.WaitGroup
	for i, who := range tenants {
		writers.Go(func() {
			pub, err := outbox.NewPublisher(who.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			next := time.Now().Add(pause * time.Duration(i) / time.Duration(len(tenants)))
			for k := range n {
				time.Sleep(time.Until(next)) // the pace of the load; nothing waits for this
				next = next.Add(pause)
				payload := fmt.Sprintf("%s %s %d", phase, who.Key, k)
				tr.mu.Lock()
				tr.sent[payload] = time.Now()
				tr.mu.Unlock()
				if err := pub.Publish("events", newMessage(payload)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// arrives waits until all written messages have arrived, failing when none arrives within patience.
func (tr *traffic) arrives(t testing.TB, b *fakeBroker) {
	t.Helper()
	tr.mu.Lock()
	payloads := slices.Collect(maps.Keys(tr.sent))
	tr.mu.Unlock()
	arrived := func() (n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range payloads {
			if b.seen[p] {
				n++
			}
		}
		return n
	}
	goesOn(t, "messages arrive", len(payloads), arrived)
}

// goesOn waits until a number is reached, failing when it does not grow within patience.
func goesOn(t testing.TB, what string, most int, now func() int) {
	t.Helper()
	for n := now(); n < most; n = now() {
		eventually(t, func() bool { return now() > n }, "%s: %d of %d do", what, n, most)
	}
}

// pace holds percentiles of the time that messages took to arrive.
type pace struct{ p50, p99 time.Duration }

func (p pace) String() string {
	return fmt.Sprintf("p50 %s, p99 %s", p.p50.Round(time.Millisecond), p.p99.Round(time.Millisecond))
}

// asGoodAs reports whether p is not slower than o by more than one reply of a server with this delay.
func (p pace) asGoodAs(o pace, delay time.Duration) bool {
	return p.p50 < o.p50+delay/3 && p.p99 < 2*o.p99+delay/2
}

// paceOf returns the pace of a phase's messages, for tenants that were present all the time.
func (tr *traffic) paceOf(b *fakeBroker, phase string, tenants ...tenant) pace {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	known := map[string]bool{}
	for _, who := range tenants {
		known[who.Key] = true
	}
	var took []time.Duration
	for _, msg := range b.all() {
		var in, key string
		var k int
		if _, err := fmt.Sscanf(msg.payload, "%s %s %d", &in, &key, &k); err == nil && in == phase && known[key] {
			took = append(took, msg.at.Sub(tr.sent[msg.payload]))
		}
	}
	slices.Sort(took)
	return pace{took[len(took)/2], took[len(took)*99/100]}
}

// Many databases, of which one cannot be reached, one takes five seconds for each reply, and some come and go: nothing
// is lost, the others are as fast as without those, and there are never more connections than allowed. OUTBOX_LONG has
// 20 databases and 200 schemas.
func TestFleetManyDatabases(t *testing.T) {
	extended(t)
	parallel(t)
	databases, schemas, maxConns := 3, 24, 20 // as many as they need; package fleet tests the limit
	if long {
		databases, schemas, maxConns = 20, 200, 40
	}
	const messages, delay = 3, 5 * time.Second
	pause := 40 * time.Millisecond * time.Duration(databases+schemas) // the same load for any number of tenants
	var steady []tenant
	for i := range databases {
		steady = append(steady, newTenants(t, fmt.Sprintf("db-%02d", i), 0)...)
	}
	shared := newTenants(t, "schema", schemas)
	const restless = 5
	coming := shared[:restless]
	steady = append(steady, shared[restless:]...)
	slow := newTenants(t, "slow", 0)[0]
	proxy := newProxy(t, slow.DSN)
	proxy.delay.Store(int64(delay))
	slow.DSN = proxy.url

	r := newRegistry(targetsOf(append(slices.Clone(steady), coming...)...)...)
	log := newLogCapture(t)
	f := runFleet(t, r.Discover, fleet.Config{RefreshInterval: 100 * time.Millisecond, MaxConns: maxConns}, log)
	broker := newFakeBroker()
	cfg := quickGroup()
	cfg.IdlePollInterval, cfg.IdleAfter = 200*time.Millisecond, 100*time.Millisecond // polls find each message
	cfg.Forwarder.PollInterval, cfg.Forwarder.LeaseTTL = 200*time.Millisecond, 5*time.Second
	runGroup(t, f, broker, cfg, log)

	count := startCounting(t, shared[0].handle, "fleet-"+t.Name(),
		value[string](t, slow.handle, "SELECT current_database()"))
	load := &traffic{sent: map[string]time.Time{}}
	load.write(t, "warm", 1, pause, append(slices.Clone(steady), coming...)...)
	load.arrives(t, broker)
	away := fleet.Target{Key: "away", DSN: newSilentServer(t)}
	slowed := 0
	for round := 1; ; round++ {
		// repeated if the machine's speed changed in between, or it stalled
		before, trouble, after := fmt.Sprint("before-", round), fmt.Sprint("trouble-", round), fmt.Sprint("after-", round)
		load.write(t, before, messages-1, pause, steady...)
		r.add(slow.Target, away)
		proxy.delay.Store(int64(delay))
		var others sync.WaitGroup
		over := make(chan struct{})
		others.Go(func() {
			for i := 0; ; i++ {
				who := coming[i%len(coming)]
				r.remove(who.Key)
				select {
				case <-over:
					r.add(who.Target)
					return
				case <-time.After(300 * time.Millisecond): // time of absence
					r.add(who.Target)
				}
			}
		})
		others.Go(func() { load.write(t, fmt.Sprint("restless-", round), messages, pause, coming...) })
		others.Go(func() { load.write(t, fmt.Sprint("slow-", round), messages, pause, slow) })
		load.write(t, trouble, messages, pause, steady...)
		close(over)
		others.Wait()
		proxy.delay.Store(0)
		load.arrives(t, broker)
		r.remove(away.Key)
		r.remove(slow.Key)
		load.write(t, after, messages-1, pause, steady...)
		load.arrives(t, broker)

		begin, amid, end := load.paceOf(broker, before, steady...), load.paceOf(broker, trouble, steady...),
			load.paceOf(broker, after, steady...)
		t.Logf("%d databases and %d schemas: %s; with one that is away, one slow, and %d that come "+
			"and go: %s; without them again: %s",
			databases, schemas, begin, restless, amid, end)
		asBegin, asEnd := amid.asGoodAs(begin, delay), amid.asGoodAs(end, delay)
		calm := begin.asGoodAs(end, delay) && end.asGoodAs(begin, delay)
		if asBegin && asEnd || calm && (asBegin || asEnd) {
			break
		}
		if calm {
			slowed++
		}
		require.Less(t, slowed, 2, "the others were slower, or waited for the slow one")
		require.Less(t, round, 4, "in every round the machine's speed differed after the trouble from before")
	}

	most := count()
	t.Logf("%d connections of %d", most, maxConns)
	require.Positive(t, most)
	assert.LessOrEqual(t, most, maxConns)
	eventually(t, func() bool {
		return log.count("polling a database failed") > 0
	}, "the log names the unreachable database")
	printPolls(t, shared)
}

// printPolls prints how long polls take.
func printPolls(t testing.TB, tenants []tenant) {
	ctx := t.Context()
	direct := newPgxHandle(t, tenants[0].DSN)
	names := make([]string, len(tenants))
	for i, who := range tenants {
		names[i] = (*core.DB)(who.db).Render("{outbox_id_seq}")
	}
	poll := (*core.DB)(tenants[0].db).Render(sqltext.PollOutbox)
	median := func(what func() error) time.Duration {
		var took []time.Duration
		for range 21 {
			begun := time.Now()
			require.NoError(t, what())
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		return took[len(took)/2].Round(10 * time.Microsecond)
	}
	exec := func(query string, args ...any) func() error {
		return func() error { _, err := (*core.DB)(direct.db).Exec(ctx, query, args...); return err }
	}
	t.Logf("medians: a poll %s, a full read %s, the sequences of %d schemas %s, connecting, polling and closing %s",
		median(exec(poll, int64(1), false, []string{})), median(exec(poll, int64(1), true, []string{})),
		len(tenants), median(exec(sqltext.PollOutboxes, names)),
		median(func() error {
			direct.pool.Reset()
			return exec(poll, int64(1), false, []string{})()
		}))
}

// startCounting counts the connections of an application until the returned function is called, which returns the
// largest number seen in fifty consecutive samples, half a second: a busy server needs time to notice closed
// connections. Behind a slow proxy it needs longer: the database but is not counted.
func startCounting(t testing.TB, h handle, application, but string) (most func() int) {
	t.Helper()
	over, result := make(chan struct{}), make(chan int, 1)
	go func() {
		highest := 0
		var samples []int
		for {
			var n int
			err := h.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 "+
				"AND datname <> $2", application, but).Scan(&n)
			if samples = append(samples, n); len(samples) == 50 {
				highest = max(highest, slices.Min(samples))
				samples = samples[1:]
			}
			if err != nil {
				t.Error(err)
				result <- highest
				return
			}
			select {
			case <-over:
				result <- highest
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() int { close(over); return <-result }
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
