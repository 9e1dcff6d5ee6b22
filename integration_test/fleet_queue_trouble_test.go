package integration_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// limit fails the test at the moment of excess.
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

// Databases that stop answering while they are looked at keep the places of handlers from nobody: the others' messages
// are handled while those looks are still under way. The limit of Concurrency holds when the answers come all the same.
func TestDatabasesThatNeverAnswerStopNoQueueGroup(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
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
	eventually(t, func() bool { return proxy.waits.Load() >= before+3 }, "all three are being looked at")
	for i := range 40 {
		enqueue(t, stores[3], itoa(i))
	}
	eventually(t, func() bool { return len(h.handled()) >= 44 }, "the healthy one is handled")
	assert.Zero(t, log.count("claiming failed"), "it was handled only when the looks at the others had failed")
	require.NoError(t, g.Close())
}

// A database that is slow for each answer gets its messages handled, and no more of them at once than there are places.
func TestQueueGroupOfASlowDatabaseKeepsTheLimit(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	one := newTenants(t, "one", 2)
	slow := newTenants(t, "slow", 0)[0]
	proxy := newProxy(t, slow.DSN)
	proxy.delay.Store(int64(300 * time.Millisecond))
	slow.DSN = proxy.url
	all, half := limit{t: t, what: "handlers", most: 4}, limit{t: t, what: "handlers of one database", most: 2}
	var h handledLog
	cfg := quickQueueGroup(&h)
	cfg.Dispatcher.Concurrency = 4
	cfg.Dispatcher.Handlers["events"] = queue.Handler{
		Detached: true, Handle: func(ctx context.Context, msg *queue.Message) error {
			all.enter()
			defer all.leave()
			if msg.DB == one[0].Key {
				half.enter()
				defer half.leave()
			}
			return h.handle(ctx, msg)
		},
	}
	f := runFleet(t, fleet.Static(targetsOf(append(slices.Clone(one), slow)...)...), fleet.Config{}, nil)
	stores := storesOf(t, append(slices.Clone(one), slow)...)
	for i := range 60 {
		enqueue(t, stores[0], itoa(i))
		enqueue(t, stores[1], itoa(i))
		if i < 10 {
			enqueue(t, stores[2], itoa(i))
		}
	}
	_, g := runQueueGroup(t, f, cfg, nil)
	eventually(t, func() bool { return len(h.handled()) >= 130 }, "all are handled")
	require.NoError(t, g.Close())
}

// Cleaning goes on beside claiming: messages are handled although the deletion of old ones does not come to its end.
func TestAQueueGroupClaimsWhileItCleans(t *testing.T) {
	t.Parallel()
	noLeaks(t)
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
	eventually(t, func() bool { return one.count(t, "SELECT count(*) FROM inbox_queue WHERE source = 'old'") == 0 },
		"the old one is deleted")
}

// deadlines remembers statements that have none.
type deadlines struct{ clean, without atomic.Int64 }

func (d *deadlines) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if data.SQL == (sqltext.Tables{}).Render(sqltext.CleanQueue) {
		d.clean.Add(1)
		if _, bounded := ctx.Deadline(); !bounded {
			d.without.Add(1)
		}
	}
	return ctx
}

func (*deadlines) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Each statement of a clean-up has a deadline of its own, so that a connection on which no answer comes ends it.
func TestCleaningTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	var seen deadlines
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	_, err := newStore(t, h, queue.StoreConfig{}).Clean(t.Context())
	require.NoError(t, err)
	assert.NotZero(t, seen.clean.Load())
	assert.Zero(t, seen.without.Load())
}

// DrainFirst at its defaults empties one database and then goes on to the next, although four are looked at at once and
// one has half of the places at most.
func TestDrainFirstDrainsFirst(t *testing.T) {
	t.Parallel()
	noLeaks(t)
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
		Selection:  fleet.DrainFirst(),
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
	const places = 16 // the default of DispatcherConfig.Concurrency, for all databases together
	assert.LessOrEqual(t, changes, len(all)+2*places*(len(all)-1), "changes of the database; the last messages of one, "+
		"one in each place, are handled beside the first of the next")
}
