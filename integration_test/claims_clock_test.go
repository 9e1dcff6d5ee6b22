package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// skewed returns a handle whose database clock the test controls. Its own clock functions precede those of pg_catalog
// in the search path, so to the database the clock of this process is off.
func skewed(t testing.TB) handle {
	t.Helper()
	url := newMigratedDatabase(t)
	admin := newPgxHandle(t, url)
	for _, statement := range []string{
		`create schema skew`,
		`create table skew.clock (off interval not null)`,
		`create function skew.clock_timestamp() returns timestamptz language sql volatile as
			'select pg_catalog.clock_timestamp() + c.off from skew.clock c'`,
		`create function skew.statement_timestamp() returns timestamptz language sql stable as
			'select pg_catalog.statement_timestamp() + c.off from skew.clock c'`,
		`create function skew.now() returns timestamptz language sql stable as 'select pg_catalog.now() + c.off ` +
			`from skew.clock c'`,
		`alter table inbox_queue alter first_seen_at set default skew.clock_timestamp(), alter last_seen_at set default ` +
			`skew.clock_timestamp()`,
	} {
		admin.exec(t, statement)
	}
	admin.exec(t, `insert into skew.clock values (interval '0')`)
	return pgxHandle(t, "skewed", url, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["search_path"] = "skew, pg_catalog, public"
	})
}

// passes advances the database's clock.
func (h handle) passes(t testing.TB, d time.Duration) {
	t.Helper()
	h.exec(t, `update skew.clock set off = off + $1::float8 * interval '1 second'`, d.Seconds())
}

// TestClientClockOff: the clock of a process is off by an hour in either direction. Leases, waits, due times, expiry
// and retention follow the database's clock.
func TestClientClockOff(t *testing.T) {
	parallel(t)
	for name, off := range map[string]time.Duration{"ahead": -time.Hour, "behind": time.Hour} {
		t.Run(name, func(t *testing.T) {
			if name == "behind" {
				extended(t)
			}
			h := skewed(t)
			for _, test := range []func(*testing.T, handle){clockOfLeases, clockOfWaits, clockOfItems, clockOfDispatcher} {
				h.exec(t, `update skew.clock set off = $1::float8 * interval '1 second'`, off.Seconds())
				require.InDelta(t, off.Seconds(), time.Until(h.now(t)).Seconds(), patience.Seconds())
				test(t, h)
				h.exec(t, "delete from inbox_queue")
			}
		})
	}
}

func clockStore(t testing.TB, h handle) *queue.Store {
	t.Helper()
	return storeOn(t, h, queue.StoreConfig{
		Backoff: outbox.Backoff{Func: func(int) time.Duration { return time.Hour }}, Retention: 30 * time.Minute,
	})
}

func clockOfLeases(t *testing.T, h handle) {
	store, owner, other := clockStore(t, h), queue.NewOwner(), queue.NewOwner()
	id := item("clock", "lease").ID
	reaps := func(want int) {
		t.Helper()
		n, err := store.ReapExpired(t.Context())
		settles(t, want)(n, err)
	}
	storeAll(t, store, item("clock", "lease"))
	for range 2 { // claimed when stored, and again when due
		require.Len(t, claimed(t, store, owner, 1), 1) // for a minute
		h.passes(t, 30*time.Second)
		reaps(0)
		ours, err := store.Renew(t.Context(), owner, time.Minute, id)
		require.NoError(t, err)
		require.Len(t, ours, 1)
		h.passes(t, 30*time.Second)
		reaps(0)
		require.Empty(t, claimed(t, store, other, 1))
		h.passes(t, 31*time.Second)
		reaps(1)
		require.Empty(t, claimed(t, store, other, 1), "it waits")
		h.passes(t, time.Hour)
	}
	require.Len(t, claimed(t, store, other, 1), 1)
	settles(t, 1)(store.Ack(t.Context(), other, id))
	assert.Equal(t, 2, got(t, store, id).Attempts)
}

func clockOfWaits(t *testing.T, h handle) {
	ctx, store, owner := t.Context(), clockStore(t, h), queue.NewOwner()
	it := item("clock", "wait")
	comes := func(wait time.Duration) {
		t.Helper()
		if wait > 0 {
			require.Empty(t, claimed(t, store, owner, 1))
			h.passes(t, wait-20*time.Minute)
			require.Empty(t, claimed(t, store, owner, 1))
			h.passes(t, 20*time.Minute)
		}
		require.Len(t, claimed(t, store, owner, 1), 1)
	}
	storeAll(t, store, it)
	comes(0)
	settles(t, 1)(store.Abandon(ctx, owner, "", 0, it.ID))
	comes(time.Hour)
	settles(t, 1)(store.Abandon(ctx, owner, "", 2*time.Hour, it.ID))
	comes(2 * time.Hour)
	settles(t, 1)(store.Release(ctx, owner, it.ID))
	comes(0)
	settles(t, 1)(store.Fail(ctx, owner, "", it.ID))
	require.NoError(t, store.MarkProcessing(ctx, it.ID))
	comes(0)

	settles(t, 1)(store.Ack(ctx, owner, it.ID))
	storeAll(t, store, item("clock", "marked"))
	require.NoError(t, store.MarkProcessed(ctx, item("clock", "marked").ID))
	remembered := func(want int64) {
		t.Helper()
		n, err := store.Clean(ctx)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	h.passes(t, 29*time.Minute)
	remembered(0)
	h.passes(t, 2*time.Minute)
	remembered(2)
}

func clockOfItems(t *testing.T, h handle) {
	store, owner := clockStore(t, h), queue.NewOwner()
	now, some := h.now(t), 30*time.Minute // between the two clocks
	past, soon, over, lasting := item("clock", "past"), item("clock", "soon"), item("clock", "over"),
		item("clock", "lasting")
	past.DueAt, soon.DueAt, over.ExpiresAt, lasting.ExpiresAt = now.Add(-some), now.Add(some), now.Add(-some),
		now.Add(some)
	expiring := item("clock", "expiring")
	expiring.DueAt, expiring.ExpiresAt = now.Add(some/2), now.Add(some)
	storeAll(t, store, past, soon, over, lasting, expiring)
	ids := func(msgs []queue.Message) (list []string) {
		for _, msg := range msgs {
			list = append(list, msg.MessageID)
		}
		return list
	}
	require.ElementsMatch(t, []string{"past", "lasting"}, ids(claimed(t, store, owner, 10)))
	assert.Equal(t, queue.Dead, got(t, store, over.ID).State, "a claim reaps now and then")
	storeAll(t, store, soon) // again
	require.Empty(t, claimed(t, store, owner, 10))
	h.passes(t, some+time.Second)
	require.Equal(t, []string{"soon"}, ids(claimed(t, store, owner, 10)))
	_, err := store.ReapExpired(t.Context())
	require.NoError(t, err)
	assert.Equal(t, queue.Dead, got(t, store, expiring.ID).State)
	later := item("clock", "later")
	later.DueAt = h.now(t).Add(some)
	storeAll(t, store, later)
	later.DueAt = time.Time{}
	storeAll(t, store, later) // now it is due
	require.Equal(t, []string{"later"}, ids(claimed(t, store, owner, 10)))

	delayed := message.NewMessage("delayed", nil)
	outbox.SetDelay(delayed, some)
	require.NoError(t, newQueuePublisher(t, store, outbox.OwnTx).Publish("clock", delayed))
	require.Empty(t, claimed(t, store, owner, 10))
	h.passes(t, some)
	require.Equal(t, []string{"delayed"}, ids(claimed(t, store, owner, 10)))
}

// clockOfDispatcher renews a lease while its handler runs: the process uses its own clock to measure how long the lease
// lasts, and for nothing else.
func clockOfDispatcher(t *testing.T, h handle) {
	store := clockStore(t, h)
	running, dead := newBarrier(t), make(chan string, 10)
	cfg := quickDispatcher(map[string]queue.Handler{
		"calls":  {Detached: true, Timeout: -1, Handle: running.handle},
		"orders": {Handle: func(context.Context, *queue.Message) error { return nil }}, // not called: they expire, or wait
	})
	cfg.LeaseTTL = 6 * time.Second
	cfg.OnDead = func(_ context.Context, msg *queue.Message, err error) error {
		dead <- msg.MessageID + " " + err.Error()
		return nil
	}
	call, late, soon := items("calls", 1)[0], item("clock", "late"), item("clock", "soon")
	late.ExpiresAt, soon.ExpiresAt = h.now(t).Add(-30*time.Minute), h.now(t).Add(30*time.Minute)
	soon.DueAt = h.now(t).Add(30 * time.Minute)
	storeAll(t, store, call, late, soon)
	d := dispatching(t, store, cfg)
	running.await(t)
	assert.Equal(t, "late expired", within(t, "the expired message is dead", dead))
	h.exec(t, "create table leases_before as select locked_until from inbox_queue where topic = 'calls'")
	h.reaches(t, 1, "the lease is renewed",
		`select count(*) from inbox_queue q, leases_before l where q.topic = 'calls' `+
			`and q.locked_until > l.locked_until`)
	assert.Empty(t, running.came, "it was lost")
	running.open()
	untilState(t, store, call.ID, queue.Done)
	_, attempts := stateOf(t, store, call.ID)
	assert.Zero(t, attempts)
	require.NoError(t, d.Close())
	assert.Empty(t, dead)
}
