package integration_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

func newForwarder(t testing.TB, h handle, pub message.Publisher, cfg forwarder.Config) *forwarder.Forwarder {
	t.Helper()
	f, err := forwarder.New(h.db, pub, cfg, newLogCapture(t))
	require.NoError(t, err)
	return f
}

func TestRunOnceAndClose(t *testing.T) {
	h := onPgx(t)
	f := newForwarder(t, h, newFakeBroker(), quickConfig())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(t.Context()) }()
	<-f.Running()
	require.ErrorIs(t, f.Run(t.Context()), outbox.ErrRunning)
	var closers sync.WaitGroup
	for range 4 {
		closers.Go(func() { assert.NoError(t, f.Close()) })
	}
	closers.Wait()
	require.NoError(t, <-ended)
	require.ErrorIs(t, f.Run(t.Context()), outbox.ErrClosed)
	require.ErrorIs(t, f.Drain(t.Context()), outbox.ErrClosed)
	require.NoError(t, f.Close())
	assert.Zero(t, h.count(t, "select count(*) from outbox_forwarders"))
	assert.Zero(t, h.count(t, "select count(*) from outbox_lanes where owner is not null"))

	never := newForwarder(t, h, newFakeBroker(), quickConfig())
	require.NoError(t, never.Close())
	require.ErrorIs(t, never.Run(t.Context()), outbox.ErrClosed)
	require.ErrorIs(t, never.Drain(t.Context()), outbox.ErrClosed)
}

func TestRunThatCannotStart(t *testing.T) {
	parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	h := newPgxHandle(t, newDatabase(t))
	f := newForwarder(t, h, newFakeBroker(), quickConfig())
	require.ErrorIs(t, f.Run(ctx), schema.ErrSchemaChanged)
	require.Error(t, f.Drain(ctx), "Drain waits for a forwarder that does not run")
	require.NoError(t, ctx.Err())
	require.NoError(t, f.Close())
	require.ErrorIs(t, newForwarder(t, h, newFakeBroker(), quickConfig()).Drain(ctx), schema.ErrSchemaChanged)
}

func TestDrain(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		h.publish(t, "orders", "K", numbered("", 1, 300)...)
		h.publish(t, "orders", "", numbered("u", 1, 300)...)
		delayed := newMessage("delayed")
		outbox.SetDelay(delayed, time.Hour)
		due := newMessage("due")
		outbox.SetDueAt(due, time.Now().Add(-time.Second))
		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		require.NoError(t, pub.Publish("orders", delayed, due))

		broker := newFakeBroker()
		f := newForwarder(t, h, broker, quickConfig())
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, f.Drain(ctx))
		assert.Len(t, broker.payloads(), 601)
		assert.Equal(t, 601, h.count(t, "select count(*) from outbox where published_at is not null"))
		assert.Zero(t, h.count(t, "select count(*) from outbox_lanes where owner is not null"))
	})
}

// TestDrainOfARunningForwarder also sends messages that fell due since the last poll for delayed ones.
func TestDrainOfARunningForwarder(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PollInterval = time.Minute
	w := startForwarder(t, h, cfg)
	w.idle(t)
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	msg := newMessage("due")
	outbox.SetDueAt(msg, time.Now().Add(-time.Second))
	require.NoError(t, pub.Publish("orders", msg))
	w.idle(t)
	assert.Equal(t, []string{"due"}, w.payloads())

	t.Run("waits no longer than its context", func(t *testing.T) {
		block := make(chan struct{})
		defer close(block)
		w.answers(func(string, *message.Message) error { <-block; return nil })
		w.publish(t, "orders", "K", "stuck")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, w.Drain(ctx), context.DeadlineExceeded)
	})
}

// TestWake: callers of Wake need not wait for the poll interval.
func TestWake(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		cfg := quickConfig()
		cfg.PollInterval = time.Hour
		w := startForwarder(t, h, cfg)
		w.idle(t)
		w.publish(t, "orders", "K", "1")
		w.arrives(t, "1")

		h.exec(t, insertPlain, "some-uuid", "orders", "K", "2") // wakes no forwarder
		h.db.Wake()
		w.arrives(t, "2")
	})
	t.Run("another process", func(t *testing.T) {
		url := newMigratedDatabase(t)
		cfg := quickConfig()
		cfg.PollInterval = time.Hour
		w := startForwarder(t, newPgxHandle(t, url), cfg)
		w.idle(t)
		other := newPgxHandle(t, url)
		eventually(t, func() bool {
			return other.count(t, "select count(*) from pg_stat_activity where datname = current_database() "+
				"and query ilike 'listen%'") > 0
		}, "it listens")
		other.publish(t, "orders", "K", "1")
		w.arrives(t, "1")
	})
}

// TestGracefulShutdown waits for messages in flight and settles them, and the next forwarder need not wait for the
// lease.
func TestGracefulShutdown(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		cfg := quickConfig()
		goOn := make(chan struct{})
		broker := newFakeBroker()
		broker.answers(func(string, *message.Message) error { <-goOn; return nil })
		f := newForwarder(t, h, broker, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		h.publish(t, "orders", "K", numbered("k", 1, 20)...)
		h.publish(t, "orders", "", numbered("u", 1, 20)...)
		broker.wait(t, "some are in flight", func() bool {
			return broker.triedTimes("u1") == 1 && broker.triedTimes("k1") == 1
		})
		cancel()
		require.ErrorIs(t, f.Drain(t.Context()), outbox.ErrClosed, "it has begun to stop")
		select {
		case err := <-ended:
			t.Fatalf("Run did not wait: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		close(goOn)
		require.NoError(t, <-ended)
		taken := broker.payloads()
		assert.Contains(t, taken, "k1")
		assert.NotContains(t, taken, "k20", "nothing new should be published")
		assert.Equal(t, len(taken), h.count(t, "select count(*) from outbox where published_at is not null"))
		assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))

		next := startForwarder(t, h, cfg)
		next.arrives(t, "k20")
		next.idle(t)
		assert.Equal(t, len(broker.all())+len(next.all()), 40, "some were sent twice")
	})
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout, cfg.CloseTimeout = -1, 300*time.Millisecond
	goOn := make(chan struct{})
	t.Cleanup(func() { close(goOn) })
	broker := newFakeBroker()
	broker.answers(func(string, *message.Message) error { <-goOn; return errRefused })
	log := newLogCapture(t)
	f, err := forwarder.New(h.db, broker, cfg, log)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(t.Context()) }()
	h.publish(t, "orders", "K", "1")
	broker.wait(t, "it hangs", func() bool { return broker.triedTimes("1") == 1 })
	begun := time.Now()
	require.NoError(t, f.Close())
	require.NoError(t, <-ended)
	assert.GreaterOrEqual(t, time.Since(begun), cfg.CloseTimeout)
	assert.Less(t, time.Since(begun), patience)
	assert.Equal(t, 1, log.count("stopped during publishes"))
	assert.Zero(t, h.count(t, "select count(*) from outbox_lanes where owner is not null"))
	next := startForwarder(t, h, quickConfig())
	next.arrives(t, "1")
}

// TestDatabaseGoesAway restarts and kills the server under a forwarder.
func TestDatabaseGoesAway(t *testing.T) {
	parallel(t)
	server := ownServer(t)
	url, err := server.NewDatabase(t.Context())
	require.NoError(t, err)
	for _, open := range []func() handle{
		func() handle { return newPgxHandle(t, url) },
		func() handle { return newSQLHandle(t, "postgres", url) },
	} {
		h := open()
		t.Run(h.name, func(t *testing.T) {
			if h.sql != nil {
				extended(t)
			}
			require.NoError(t, makeTables(t.Context(), h.db))
			h.exec(t, "truncate outbox")
			cfg := quickConfig()
			cfg.QueryTimeout = 5 * time.Second // also enough for the start on a busy machine
			w := startForwarder(t, h, cfg)
			n := 0
			put := func() {
				t.Helper()
				eventually(t, func() bool { // the pool may hand out a dead connection first
					_, err := (*core.DB)(h.db).Exec(t.Context(), "select 1")
					return err == nil
				}, "the database is back")
				n++
				w.publish(t, "orders", "K", itoa(n))
			}
			put()
			w.arrives(t, "1")
			for _, end := range []func() error{server.Stop, server.Kill} {
				// A message that is published while the database is down is settled later.
				goOn, started := make(chan struct{}), make(chan struct{})
				var once sync.Once
				w.answers(func(string, *message.Message) error {
					once.Do(func() { close(started) })
					<-goOn
					return nil
				})
				put()
				<-started
				require.NoError(t, end())
				close(goOn)
				w.arrives(t, itoa(n))
				require.NoError(t, server.Restart(t.Context()))
				put()
				put()
				w.arrives(t, itoa(n))
				assert.Equal(t, numbered("", 1, n), w.payloads("K"))
			}
			h.reaches(t, 0, "everything is settled",
				"select count(*) from outbox where published_at is null or attempts > 0")
			assert.LessOrEqual(t, w.log.count("error: "), 12, "%v", *w.log.lines)
		})
	}
}

func TestRetention(t *testing.T) {
	h := onPgx(t)
	// Old enough: published long ago. Not old enough: published recently though written long ago, pending, waiting, dead.
	h.exec(t, `insert into outbox (uuid, topic, payload, created_at, published_at)
		select 'old-' || i, 'orders', '', now() - interval '8 days', now() - interval '8 days' from generate_series(1, 3500) i`)
	h.exec(t, `insert into outbox (uuid, topic, payload, created_at, published_at) values
		('lately', 'orders', '', now() - interval '9 days', now() - interval '6 days')`)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, created_at, due_at, attempts) values
		('waiting', 'other', 'K', '', now() - interval '9 days', now() + interval '1 hour', 1)`)
	h.exec(t, `insert into outbox (uuid, topic, payload, created_at, dead_at) values
		('dead', 'orders', '', now() - interval '9 days', now() - interval '9 days')`)
	h.exec(t, `insert into outbox (uuid, topic, payload, created_at, published_at) values
		('beyond', 'orders', '', now() - interval '9 days', now() - interval '8 days')`)
	cfg := quickConfig()
	cfg.CleanInterval = 20 * time.Millisecond
	startForwarder(t, h, cfg)
	h.reaches(t, 3, "old messages are deleted", "select count(*) from outbox")
	assert.ElementsMatch(t, []string{"lately", "waiting", "dead"}, column[string](t, h, "select uuid from outbox"))

	t.Run("none", func(t *testing.T) {
		forEachHandle(t, func(t *testing.T, h handle) {
			cfg := quickConfig()
			cfg.Retention = -1
			w := startForwarder(t, h, cfg)
			w.publish(t, "orders", "K", "1", "2")
			w.publish(t, "orders", "", "3")
			w.arrives(t, "1", "2", "3")
			h.reaches(t, 0, "published messages are deleted", "select count(*) from outbox")
		})
	})
}

// TestDrainBesideRun: Drain and Run both work, whichever starts first.
func TestDrainBesideRun(t *testing.T) {
	h := onPgx(t)
	for range 10 {
		f := newForwarder(t, h, newFakeBroker(), quickConfig())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(context.Background()) }()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := f.Drain(ctx)
		cancel()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		if err := <-ended; !errors.Is(err, outbox.ErrClosed) && !errors.Is(err, outbox.ErrRunning) {
			require.NoError(t, err)
		}
	}
}

// TestShutdownFreesIdleLanes: a slow publish keeps its lane, and the others move to another forwarder.
func TestShutdownFreesIdleLanes(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.CloseTimeout = time.Minute
	publishing, goOn := make(chan struct{}), make(chan struct{})
	broker := newFakeBroker()
	broker.answers(func(string, *message.Message) error { close(publishing); <-goOn; return nil })
	stopping := newForwarder(t, h, broker, cfg)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- stopping.Run(ctx) }()
	<-stopping.Running()
	h.publish(t, "orders", "K", "slow")
	<-publishing
	cancel()
	cfg.Name = "next"
	startForwarder(t, h, cfg)
	lanes := func() int {
		return h.count(t, "select count(*) from outbox_lanes l join outbox_forwarders f on f.id = l.owner "+
			"where f.name = 'next'")
	}
	eventually(t, func() bool { return lanes() == 63 }, "the next one has all but one")
	close(goOn)
	require.NoError(t, <-ended)
	eventually(t, func() bool { return lanes() == 64 }, "and later that one too")
}

// TestFrozenStarter: a process that stands still while it joins does not prevent others from renewing their leases.
func TestFrozenStarter(t *testing.T) {
	h := onPgx(t)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	startForwarder(t, h, sharing(quickConfig()))
	_, err = tx.Exec(t.Context(), sqltext.Tables{}.Render(sqltext.LockForwarders))
	require.NoError(t, err)
	expiry := value[time.Time](t, h, "select expires_at from outbox_forwarders")
	eventually(t, func() bool {
		return value[time.Time](t, h, "select expires_at from outbox_forwarders").After(expiry.Add(time.Second))
	}, "the lease is renewed")
}

// TestCleanUpGoesOn where it stopped, instead of scanning deleted rows that a long transaction keeps in the index.
func TestCleanUpGoesOn(t *testing.T) {
	parallel(t)
	seen := &statementLog{}
	h := pgxHandle(t, "seen", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = seen })
	h.exec(t, `insert into outbox (uuid, topic, payload, created_at, published_at)
		select i, 'orders', 'x', now() - interval '8 days', now() - interval '8 days' from generate_series(1, 5000) i`)
	h.exec(t, "insert into outbox (uuid, topic, payload, published_at) values ('young', 'orders', 'x', now())")
	clean := sqltext.Tables{}.Render(sqltext.CleanPublished)
	var began []int64 // the ids at which clean-ups began
	read := func() int {
		for _, s := range seen.take() {
			i := slices.IndexFunc(s.Args, func(arg any) bool { _, ok := arg.(int64); return ok })
			if s.SQL == clean && i >= 0 {
				began = append(began, s.Args[i].(int64))
			}
		}
		return len(began)
	}
	cfg := quickConfig()
	cfg.CleanInterval = 20 * time.Millisecond
	startForwarder(t, h, cfg)
	h.reaches(t, 1, "old messages are deleted", "select count(*) from outbox")
	walked := read()
	eventually(t, func() bool { return read() > walked+5 }, "it reads again")
	for _, id := range began[walked+1:] {
		assert.GreaterOrEqual(t, id, int64(4000), "it began at the start again: %v", began)
	}
}

// TestRetentionOfTopics: a forwarder deletes messages of its own topics only.
func TestRetentionOfTopics(t *testing.T) {
	h := onPgx(t)
	for _, topic := range []string{"mine", "theirs"} {
		h.publish(t, topic, "", numbered(topic, 1, 10)...)
	}
	h.exec(t, "update outbox set published_at = now() - interval '1 hour', created_at = now() - interval '1 hour'")
	cfg := quickConfig()
	cfg.Topics, cfg.Retention, cfg.CleanInterval = []string{"mine"}, time.Minute, 10*time.Millisecond
	startForwarder(t, h, cfg)
	h.reaches(t, 0, "its own messages are deleted", "select count(*) from outbox where topic = 'mine'")
	assert.Equal(t, 10, h.count(t, "select count(*) from outbox"))
}
