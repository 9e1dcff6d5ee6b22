package integration_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// outcome runs sqltext.SettleFailed for the only message of an outbox and returns its outcome.
func (h handle) outcome(t testing.TB, owner string, epoch int64, attempts int64) (outcome string) {
	t.Helper()
	require.NoError(t, drive.Collect(t.Context(), (*core.DB)(h.db), func(rows drive.Rows) error {
		return rows.Scan(new(int64), &outcome)
	},
		sqltext.Tables{}.Render(sqltext.SettleFailed),
		"s", owner, []int64{1}, []string{value[string](t, h, "select uuid from outbox")},
		[]int64{int64(value[int](t, h, "select lane::int from outbox"))}, []int64{epoch}, []int64{attempts},
		[]float64{1}, []string{"refused"}, []float64{-1}))
	return outcome
}

// TestEpochs: a failure counts once, and only under the owner and epoch of its lane; acquiring a lane raises its epoch.
func TestEpochs(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		h.publish(t, "orders", "K", "1")
		const owner, other = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
		h.exec(t, sqltext.Tables{}.Render(sqltext.CreateLanes), "s")
		lane := int64(value[int](t, h, "select lane::int from outbox"))
		epoch := func() int64 { return value[int64](t, h, "select epoch from outbox_lanes where lane = $1", lane) }
		take := func(statement, owner string) int64 {
			before := epoch()
			taken := column[int64](t, h, "with taken as ("+sqltext.Tables{}.Render(statement)+") select epoch from taken", "s",
				owner, []int64{lane}, []int64{before}, []int64{0})
			require.Equal(t, []int64{before + 1}, taken)
			require.Equal(t, before+1, epoch())
			return before + 1
		}
		first := take(sqltext.TakeLanes, owner)
		assert.Equal(t, "fenced", h.outcome(t, other, first, 1))
		assert.Equal(t, "waiting", h.outcome(t, owner, first, 1))
		assert.Equal(t, "waiting", h.outcome(t, owner, first, 1), "it is repeated because its reply was lost")
		assert.Equal(t, 1, h.count(t, "select attempts from outbox"))
		second := take(sqltext.RetakeLanes, owner)
		assert.Equal(t, "fenced", h.outcome(t, owner, first, 2))
		assert.Equal(t, 1, h.count(t, "select attempts from outbox"))
		assert.Equal(t, "waiting", h.outcome(t, owner, second, 2))
		h.exec(t, sqltext.Tables{}.Render(sqltext.ReleaseLanes), "s", owner, []int64{lane}, []int64{second})
		take(sqltext.TakeLanes, owner)
		assert.Equal(t, "fenced", h.outcome(t, owner, second, 3))
	})
}

// TestDelayedMessageFollowsABacklog: a message that fell due while a backlog is published comes after messages of its
// key that were written before it. Without a key it waits for nothing.
func TestDelayedMessageFollowsABacklog(t *testing.T) {
	h := onPgx(t)
	const backlog, keys = 3000, 50
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload)
		SELECT 'b' || i, 'x', 'B' || i, ('b' || i)::bytea FROM generate_series(1, $1::int) i`, backlog)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, due_at)
		SELECT n || '/' || i, 'x', 'K' || i, n::text::bytea, CASE n WHEN 2 THEN now() END
		  FROM generate_series(1, 2) n, generate_series(1, $1::int) i ORDER BY n`, keys)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('free', 'x', 'free', now())")
	cfg := quickConfig()
	cfg.ReadAhead = 100
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error { return nil })
	eventually(t, func() bool { return len(w.all()) == backlog+2*keys+1 }, "all are published")
	for k := 1; k <= keys; k++ {
		assert.Equal(t, []string{"1", "2"}, w.payloads(fmt.Sprint("K", k)))
	}
	assert.Less(t, slices.Index(w.payloads(), "free"), backlog/2)
}

// TestTransactionAboveTheSnapshot: when the outbox is read, a transaction has its id and its row, but no later one has
// ended yet. So the snapshot does not list it among those in progress: its id is at xmax. It commits after all, and its
// message is published before a later one.
func TestTransactionAboveTheSnapshot(t *testing.T) {
	parallel(t)
	_, h := ownMigratedServer(t, "autovacuum=off") // no other transactions
	cfg := quickConfig()
	cfg.LeaseTTL = 5 * time.Minute // no renewal in between
	w := startForwarder(t, h, cfg)
	w.publish(t, "orders", "K", "0")
	w.arrives(t, "0")
	w.idle(t)
	for n := 1; n <= 5; n++ {
		tx, err := h.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.Background())
		_, err = tx.Exec(t.Context(), insertPlain, "early-"+itoa(n), "orders", "K", itoa(2*n-1))
		require.NoError(t, err)
		var xid int64
		require.NoError(t, tx.QueryRow(t.Context(), "select pg_current_xact_id()::text::bigint").Scan(&xid))
		w.idle(t) // it has been read
		require.Equal(t, xid, value[int64](t, h, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"),
			"another transaction has ended: the test shows nothing")
		require.NoError(t, tx.Commit(t.Context()))
		h.exec(t, insertPlain, "late-"+itoa(n), "orders", "K", itoa(2*n))
		w.arrives(t, itoa(2*n))
		w.idle(t)
		require.Equal(t, numbered("", 0, 2*n), w.payloads("K"))
	}
}

// TestLanesWithResultsOnTheirWay are not released: the next owner would read messages that are already published. It is
// cheap to wait for the results.
func TestLanesWithResultsOnTheirWay(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	gated, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	var asked atomic.Int64
	gate.onRun(sqltext.Lanes, func() { asked.Add(1) })
	cfg := sharing(quickConfig())
	cfg.QueryTimeout = time.Minute
	w := startForwarder(t, gated, cfg)
	settle := gate.holdSettling()
	all := numbered("", 1, 2000) // in all lanes
	w.publish(t, "orders", "", all...)
	w.arrives(t, all...)
	h := newPgxHandle(t, url)
	w.join(t, h, cfg)
	shares := func() []int {
		return column[int](t, h, "select count(*)::int from outbox_lanes where owner is not null group by owner")
	}
	before, begun := asked.Load(), time.Now()
	h.awaitRenewals(t) // the first forwarder sees the other, and had time to release lanes
	assert.Less(t, float64(asked.Load()-before), 40*time.Since(begun).Seconds(), "statements on outbox_lanes per second")
	assert.Equal(t, []int{64}, shares())
	gate.release(settle...)
	eventually(t, func() bool {
		return assert.ObjectsAreEqual([]int{32, 32}, shares())
	}, "half of the lanes are released")
	w.idle(t)
	assert.Equal(t, 2000, len(w.all()), "some were sent twice")
}

// TestLockedFailure: a failure whose row is locked does not prevent others from being recorded.
func TestLockedFailure(t *testing.T) {
	h := onPgx(t)
	h.publish(t, "orders", "", numbered("", 1, 10)...)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "select from outbox where id = 5 for update")
	require.NoError(t, err)
	cfg := quickConfig()
	cfg.QueryTimeout = 2 * patience
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	startForwarderOn(t, h, cfg, func(string, *message.Message) error { return errRefused })
	const recorded = "select count(*) from outbox where attempts = 1"
	eventually(t, func() bool { return h.count(t, recorded) == 9 }, "all others are recorded")
	require.NoError(t, tx.Rollback(t.Context()))
	eventually(t, func() bool { return h.count(t, recorded) == 10 }, "and so is that one")
}

// TestPublishedAfterItsDeath: a publish that timed out, after which the message died, has succeeded after all.
func TestPublishedAfterItsDeath(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout = 50 * time.Millisecond
	cfg.Classify = func(error) forwarder.Verdict { return forwarder.Permanent }
	goOn := make(chan struct{})
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error { <-goOn; return nil })
	w.publish(t, "orders", "K", "1")
	h.reaches(t, 1, "it is dead", "select count(*) from outbox where dead_at is not null")
	close(goOn)
	h.reaches(t, 1, "it is published and not dead",
		"select count(*) from outbox where dead_at is null and published_at is not null")
}

// TestListenReconnects: a broken connection is replaced, and commits of other processes are noticed again.
func TestListenReconnects(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	cfg := quickConfig()
	cfg.PollInterval = time.Hour
	w := startForwarder(t, newPgxHandle(t, url), cfg)
	other := newPgxHandle(t, url)
	for n := range 3 {
		before := listener(t, other)
		other.exec(t, "select pg_terminate_backend($1::bigint::int)", before)
		eventually(t, func() bool { return listener(t, other) != before }, "it listens again")
		w.idle(t)
		other.publish(t, "orders", "K", itoa(n))
		w.arrives(t, itoa(n))
	}
}

// listener waits until one session listens and returns its process id.
func listener(t testing.TB, h handle) int {
	t.Helper()
	var pids []int
	eventually(t, func() bool {
		pids = column[int](t, h, "select pid from pg_stat_activity where datname = current_database() "+
			"and query ilike 'listen%'")
		return len(pids) == 1
	}, "one session listens")
	return pids[0]
}

// TestListenOutlivesIdleSessionTimeout: the server does not end the listening session, however long nothing is written.
func TestListenOutlivesIdleSessionTimeout(t *testing.T) {
	extended(t)
	parallel(t)
	url := newMigratedDatabase(t)
	other := newPgxHandle(t, url)
	if other.count(t, "select count(*) from pg_settings where name = 'idle_session_timeout'") == 0 {
		t.Skip("this release of Postgres does not have the setting")
	}
	setOn(t, other, "idle_session_timeout = 1000") // ms
	startForwarder(t, newPgxHandle(t, url), quickConfig())
	before := listener(t, other)
	time.Sleep(1500 * time.Millisecond)
	assert.Equal(t, before, listener(t, other), "another session listens")
}

// TestLeaseOfABusyPool: handlers hold all connections of the pool. The lease is renewed nevertheless.
func TestLeaseOfABusyPool(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	busy := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.MaxConns = 4 })
	h := newPgxHandle(t, url)
	cfg := sharing(quickConfig()) // if the lease expired, joining again would need the pool
	w := startForwarder(t, busy, cfg)
	w.idle(t)
	var held []*pgxpool.Conn
	for range 4 {
		conn, err := busy.pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		held = append(held, conn)
	}
	const lease = "select expires_at from outbox_forwarders where expires_at > clock_timestamp()"
	expiry := value[time.Time](t, h, lease)
	eventually(t, func() bool { return value[time.Time](t, h, lease).After(expiry.Add(time.Second)) },
		"the lease is renewed")
	for _, conn := range held {
		conn.Release()
	}
	w.publish(t, "orders", "K", "1")
	w.arrives(t, "1")
}

// TestReadOnlyServer: the server was demoted while the pool has connections to it, and a promoted server has its name.
// Connections that get a read-only error are replaced.
func TestReadOnlyServer(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	h, admin := newPgxHandle(t, url), newPgxHandle(t, url)
	w := startForwarder(t, h, shortLease(quickConfig()))
	w.publish(t, "orders", "K", "1")
	w.arrives(t, "1")
	w.idle(t)
	database := value[string](t, admin, "select quote_ident(current_database())")
	admin.exec(t, "alter database "+database+" set default_transaction_read_only = on")
	admin.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "+
		"and pid <> pg_backend_pid()")
	admin.reaches(t, 0, "the lease cannot be renewed",
		"select count(*) from outbox_forwarders where expires_at > clock_timestamp()")
	eventually(t, func() bool {
		_, err := (*core.DB)(admin.db).Exec(t.Context(), "alter database "+database+" reset default_transaction_read_only")
		return err == nil
	}, "the server is writable again") // connections made before still cannot write
	other := newPgxHandle(t, url)
	other.publish(t, "orders", "K", "2")
	w.arrives(t, "2")
	other.reaches(t, 0, "it is settled", "select count(*) from outbox where published_at is null")
}

// TestWhatAnOperatorChanged in the tables is found: a message to be sent again, and the deletion of one that blocked
// its key.
func TestWhatAnOperatorChanged(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.CleanInterval = 50 * time.Millisecond
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	w := startForwarderOn(t, h, cfg, refuse("1"))
	w.publish(t, "orders", "K", "1", "2")
	w.publish(t, "orders", "L", "again")
	w.publish(t, "orders", "", "unkeyed")
	w.arrives(t, "again", "unkeyed")
	h.reaches(t, 3, "all are settled", "select count(*) from outbox where published_at is not null or attempts > 0")
	w.idle(t)
	h.exec(t, "delete from outbox where attempts > 0")
	w.arrives(t, "2")
	w.idle(t)
	h.exec(t, "update outbox set published_at = null where convert_from(payload, 'UTF8') in ('again', 'unkeyed')")
	w.wait(t, "they are sent again", func() bool { return w.triedTimes("again") == 2 && w.triedTimes("unkeyed") == 2 })
}

// TestPoolThatIsTooSmall: a forwarder that gets no connection reports the size of the pool and the size that it needs.
func TestPoolThatIsTooSmall(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	small := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.MaxConns = 2 })
	bySQL := newSQLHandle(t, "postgres", url)
	bySQL.sql.SetMaxOpenConns(2)
	cfg := quickConfig()
	cfg.QueryTimeout = 300 * time.Millisecond
	for range 2 { // connections held by handlers
		tx, err := small.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.Background())
		other, err := bySQL.sql.Begin()
		require.NoError(t, err)
		defer other.Rollback()
	}
	for _, h := range []handle{small, bySQL} {
		err := newForwarder(t, h, newFakeBroker(), cfg).Run(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "all 2 connections of the pool are in use")
	}
}
