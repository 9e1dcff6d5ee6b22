package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// handledLog is a handler that remembers which messages it handled, and where.
type handledLog struct {
	mu   sync.Mutex
	all  []string // database and message id
	most int      // maximum in parallel
	now  int
	gate chan struct{} // if not nil, handlers wait for it
}

func (h *handledLog) handle(ctx context.Context, msg *queue.Message) error {
	h.mu.Lock()
	h.now++
	h.most = max(h.most, h.now)
	gate := h.gate
	h.mu.Unlock()
	if gate != nil {
		<-gate
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now--
	h.all = append(h.all, msg.DB+" "+msg.MessageID)
	return nil
}

func (h *handledLog) handled() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

func enqueue(t testing.TB, s *queue.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := s.Enqueue(t.Context(), queue.Item{
			ID: queue.ID{Source: "test", MessageID: id}, Topic: "events", Payload: []byte("x"),
		})
		require.NoError(t, err)
	}
}

// storesOf returns stores of tenants that bypass the fleet, as another process would.
func storesOf(t testing.TB, tenants ...tenant) (list []*queue.Store) {
	t.Helper()
	for _, who := range tenants {
		s, err := queue.NewStore(who.db, queue.StoreConfig{}, nil)
		require.NoError(t, err)
		list = append(list, s)
	}
	return list
}

func quickQueueGroup(h *handledLog) queue.GroupConfig {
	return queue.GroupConfig{Dispatcher: queue.DispatcherConfig{
		Handlers:     map[string]queue.Handler{"events": {Handle: h.handle}},
		PollInterval: 20 * time.Millisecond, CloseTimeout: 10 * time.Second,
	}}
}

func runQueueGroup(
	t testing.TB, f *fleet.Fleet, cfg queue.GroupConfig, logger watermill.LoggerAdapter,
) (*queue.Stores, *queue.Group) {
	t.Helper()
	stores, err := queue.NewStores(f, queue.StoreConfig{}, logger)
	require.NoError(t, err)
	g, err := queue.NewGroup(stores, cfg, logger)
	require.NoError(t, err)
	runUntilTheEnd(t, g, g.Running(), g.Close)
	return stores, g
}

// Each database has its own store, found by its key, whose name is in log lines about its messages.
func TestStoresOfAFleet(t *testing.T) {
	parallel(t)
	all := append(newTenants(t, "alone", 0), newTenants(t, "shared", 2)...)
	log := &lineLogger{}
	var h handledLog
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{}, nil)
	stores, _ := runQueueGroup(t, f, quickQueueGroup(&h), log)
	for _, who := range all {
		s, err := stores.Get(who.Key)
		require.NoError(t, err)
		again, err := stores.Get(who.Key)
		require.NoError(t, err)
		assert.Same(t, s, again)
		enqueue(t, s, "of "+who.Key)
	}
	eventually(t, func() bool { return len(h.handled()) == len(all) }, "all are handled")
	for _, who := range all {
		assert.Contains(t, h.handled(), who.Key+" of "+who.Key)
		assert.True(t, log.has("DEBUG handling message", "db:"+who.Key))
		eventually(t, func() bool {
			return who.count(t, "SELECT count(*) FROM "+who.table("inbox_queue")+" WHERE state = 'done'") == 1
		}, "the handler's transaction has committed")
	}
	_, err := stores.Get("nobody")
	require.ErrorIs(t, err, fleet.ErrUnknownDatabase)
	require.ErrorContains(t, err, `"nobody"`)
}

// The Selection decides whose turn it is. A poll that takes a quarter of a second gives up its turn, so the test is
// repeated if the machine stood still for that long.
func TestQueueGroupTakesTurns(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 3)
	for name, test := range map[string]struct {
		sel  fleet.Selection
		want string
	}{
		"round robin": {nil, "[one-000 one-001 one-002 one-000 one-001 one-002 one-000 one-001 one-002]"},
		"drain first": {fleet.DrainFirst, "[one-000 one-000 one-000 one-001 one-001 one-001 one-002 one-002 one-002]"},
	} {
		t.Run(name, func(t *testing.T) {
			order, calm := turnsOf(t, test.sel, all, name)
			for again := 1; order != test.want && !calm && again < 20; again++ {
				order, calm = turnsOf(t, test.sel, all, name+itoa(again))
			}
			assert.Equal(t, test.want, order)
		})
	}
}

// turnsOf runs a Group with one slot on three messages of each tenant. It returns whose messages were handled, in
// order, and whether no poll can have been slow.
func turnsOf(t *testing.T, sel fleet.Selection, all []tenant, name string) (order string, calm bool) {
	t.Helper()
	for _, s := range storesOf(t, all...) {
		enqueue(t, s, name+"1", name+"2", name+"3")
	}
	var h handledLog
	cfg := quickQueueGroup(&h)
	cfg.Selection, cfg.MaxPolls = sel, 1
	cfg.Dispatcher.Concurrency, cfg.Dispatcher.BatchSize = 1, 1
	last := time.Now()
	calm = true
	cfg.Dispatcher.Handlers["events"] = queue.Handler{Handle: func(ctx context.Context, msg *queue.Message) error {
		calm = calm && time.Since(last) < 250*time.Millisecond
		last = time.Now()
		return h.handle(ctx, msg)
	}}
	_, g := runQueueGroup(t, runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{}, nil), cfg, nil)
	eventually(t, func() bool { return len(h.handled()) == 9 }, "all are handled")
	require.NoError(t, g.Close())
	var keys []string
	for _, line := range h.handled() {
		var key string
		_, err := fmt.Sscan(line, &key)
		require.NoError(t, err)
		keys = append(keys, key)
	}
	return fmt.Sprint(keys), calm
}

// A database that is down, one that takes seconds for each reply and one without tables do not delay the others; all
// share the slots, and targets come and go.
func TestQueueGroupOfTroubledDatabases(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 4)
	all[3].exec(t, "DROP TABLE s003.inbox_queue")
	slow := newTenants(t, "slow", 0)[0]
	proxy := newProxy(t, slow.DSN)
	proxy.delay.Store(int64(5 * time.Second))
	slow.DSN = proxy.url
	r := newRegistry(append(targetsOf(append(all, slow)...), fleet.Target{Key: "away", DSN: newSilentServer(t)})...)
	var h handledLog
	h.gate = make(chan struct{})
	cfg := quickQueueGroup(&h)
	cfg.Dispatcher.Concurrency = 4
	log := newLogCapture(t)
	f := runFleet(t, r.Discover, fleet.Config{RefreshInterval: 50 * time.Millisecond, MaxConnsPerDSN: 6}, nil)
	_, g := runQueueGroup(t, f, cfg, log)
	stores := storesOf(t, append(slices.Clone(all[:3]), slow)...)
	for i := range 10 {
		for _, s := range stores {
			enqueue(t, s, itoa(i))
		}
	}
	eventually(t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.now == 4 }, "the slots are full")
	close(h.gate)
	eventually(t, func() bool { return len(h.handled()) >= 30 }, "the healthy ones are handled")
	eventually(t, func() bool { return log.count("claiming failed") > 0 }, "the log names the broken databases")

	r.remove(all[0].Key)
	eventually(t, func() bool { _, err := f.Get(all[0].Key); return errors.Is(err, fleet.ErrUnknownDatabase) },
		"it is gone")
	r.add(all[0].Target)
	enqueue(t, stores[0], "it is back")
	eventually(t, func() bool { return slices.Contains(h.handled(), all[0].Key+" it is back") }, "it is handled")

	proxy.delay.Store(0)
	eventually(t, func() bool { return len(h.handled()) == 41 }, "the slow one is handled when it is fast again")
	assert.LessOrEqual(t, h.most, 4)
	err := g.Drain(t.Context())
	require.ErrorContains(t, err, `database "one-003"`)
	require.ErrorContains(t, err, `database "away"`)
	assert.NotContains(t, err.Error(), "one-001")
	require.NoError(t, g.Close())
	assert.ErrorIs(t, g.Drain(t.Context()), outbox.ErrClosed)
}

// limit fails the test as soon as it is exceeded.
type limit struct {
	t    testing.TB
	what string
	most int64
	now  atomic.Int64
}

func (l *limit) enter() {
	if n := l.now.Add(1); n > l.most {
		l.t.Errorf("%s: %d at once, the limit is %d", l.what, n, l.most)
	}
}

func (l *limit) leave() { l.now.Add(-1) }

// Databases that stop replying while they are polled occupy no handler slots: messages of others are handled while
// those polls are in flight. The limit of Concurrency still holds when the replies arrive.
func TestDatabasesThatNeverAnswerStopNoQueueGroup(t *testing.T) {
	extended(t)
	parallel(t)
	healthy := newTenants(t, "healthy", 0)[0]
	hung := newTenants(t, "hung", 3)
	proxy := newProxy(t, hung[0].DSN)
	for i := range hung {
		hung[i].DSN = proxy.url
	}
	all := limit{t: t, what: "handlers", most: 4}
	var h handledLog
	cfg := quickQueueGroup(&h)
	cfg.Dispatcher.Concurrency = 4
	cfg.Dispatcher.Handlers["events"] = queue.Handler{Handle: func(ctx context.Context, msg *queue.Message) error {
		all.enter()
		defer all.leave()
		return h.handle(ctx, msg)
	}}
	log := newLogCapture(t)
	f := runFleet(t, fleet.Static(targetsOf(append(slices.Clone(hung), healthy)...)...),
		fleet.Config{MaxConnsPerDSN: 10}, nil)
	_, g := runQueueGroup(t, f, cfg, log)
	stores := storesOf(t, append(slices.Clone(hung), healthy)...)
	for _, s := range stores {
		enqueue(t, s, "before")
	}
	eventually(t, func() bool { return len(h.handled()) == 4 }, "all work")

	proxy.delay.Store(int64(time.Hour))
	before := proxy.waits.Load()
	eventually(t, func() bool { return proxy.waits.Load() >= before+3 }, "all three are being polled")
	// A poll fails after ten seconds. On a machine that stalled for as long the others' polls may have failed first.
	for round := 1; ; round++ {
		failed := log.count("claiming failed")
		for i := range 40 {
			enqueue(t, stores[3], itoa(40*round+i))
		}
		eventually(t, func() bool { return len(h.handled()) >= 4+40*round }, "the healthy one is handled")
		if log.count("claiming failed") == failed {
			break
		}
		require.Less(t, round, 3, "it is handled only after the polls of the others failed")
	}
	require.NoError(t, g.Close())
}

// Cleaning runs next to claiming: messages are handled although a deletion of old ones does not end.
func TestAQueueGroupClaimsWhileItCleans(t *testing.T) {
	parallel(t)
	one := newTenants(t, "one", 0)[0]
	one.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, done_at) VALUES ('old', 'old', 'events', `+
		`'done', now() - interval '1 year')`)
	one.exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(7); `+
		`RETURN old; END'`)
	one.exec(t, `CREATE TRIGGER wait BEFORE DELETE ON inbox_queue FOR EACH ROW EXECUTE FUNCTION wait()`)
	goOn := openTx(t, one.handle, func(ctx context.Context) error {
		return one.execTx(ctx, "SELECT pg_advisory_xact_lock(7)")
	})
	var h handledLog
	f := runFleet(t, fleet.Static(one.Target), fleet.Config{}, nil)
	runQueueGroup(t, f, quickQueueGroup(&h), nil)
	eventually(t, func() bool {
		return one.count(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = "+
			"(SELECT oid FROM pg_database WHERE datname = current_database())") > 0
	}, "old ones are being deleted")
	enqueue(t, storesOf(t, one)[0], "meanwhile")
	eventually(t, func() bool { return len(h.handled()) == 1 }, "it is handled")
	goOn(true)
	one.reaches(t, 0, "the old one is deleted", "SELECT count(*) FROM inbox_queue WHERE source = 'old'")
}

// Each statement of a clean-up has its own deadline, so a connection without replies ends it.
func TestCleaningTheQueueIsBounded(t *testing.T) {
	parallel(t)
	bounded := false
	seen := &statementCounter{text: (sqltext.Tables{}).Render(sqltext.CleanQueue), first: func(ctx context.Context) {
		_, bounded = ctx.Deadline()
	}}
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), seen.on)
	_, err := storeOn(t, h, queue.StoreConfig{}).Clean(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, seen.n.Load())
	assert.True(t, bounded)
}

// DrainFirst at its defaults empties one database before the next, although four are polled concurrently and one gets
// at most half of the slots.
func TestDrainFirstDrainsFirst(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 3)
	const each = 200
	for _, s := range storesOf(t, all...) {
		var items []queue.Item
		for i := range each {
			items = append(items, queue.Item{ID: queue.ID{Source: "test", MessageID: itoa(i)}, Topic: "events"})
		}
		storeAll(t, s, items...)
	}
	var h handledLog
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConnsPerDSN: 30}, nil)
	_, g := runQueueGroup(t, f, queue.GroupConfig{
		Selection:  fleet.DrainFirst,
		Dispatcher: queue.DispatcherConfig{Handlers: map[string]queue.Handler{"events": {Handle: h.handle}}},
	}, nil)
	eventually(t, func() bool { return len(h.handled()) == len(all)*each }, "all are handled")
	require.NoError(t, g.Close())
	changes, last := 0, ""
	for _, line := range h.handled() {
		if key := line[:len("one-000")]; key != last {
			changes++
			last = key
		}
	}
	const places = 16 // default of DispatcherConfig.Concurrency, for all databases together
	assert.LessOrEqual(t, changes, len(all)+2*places*(len(all)-1), "changes of the database; the last messages of one, "+
		"one in each place, are handled next to the first of the next")
}
