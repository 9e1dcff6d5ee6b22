package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// tripCounter counts round trips: each time that a connection writes after reading. NOTIFY, which reports commits to
// other processes in the background and coalesced, is not counted.
type tripCounter struct {
	net.Conn
	trips   *atomic.Int64
	writing bool
}

func (c *tripCounter) Write(p []byte) (int, error) {
	if !c.writing && !bytes.Contains(p, []byte("pg_notify")) {
		c.writing = true
		c.trips.Add(1)
	}
	return c.Conn.Write(p)
}

func (c *tripCounter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.writing = false
	}
	return n, err
}

// newCountedHandle opens a handle with one connection whose round trips are counted.
func newCountedHandle(t *testing.T, url string) (handle, *atomic.Int64) {
	t.Helper()
	trips := new(atomic.Int64)
	return pgxHandle(t, "counted", url, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 1
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &tripCounter{Conn: conn, trips: trips}, nil
		}
	}), trips
}

func TestRoundTripsOnPgx(t *testing.T) {
	t.Parallel()
	h, trips := newCountedHandle(t, newMigratedDatabase(t))
	silent := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	several := func(msg *message.Message) ([]*message.Message, error) {
		produced, err := book(h)(msg)
		return append(produced, newMessage(""), newMessage("")), err
	}
	mws := stack(t, h, middleware.StackConfig{})
	for _, test := range []struct {
		name    string
		handler message.HandlerFunc
		want    int64
	}{
		{"BEGIN+inbox, INSERT, outbox+COMMIT", book(h), 3},
		{"three messages cost the same", several, 3},
		{"no statement and no message: BEGIN+inbox, COMMIT", silent, 2},
	} {
		_, err := chain(test.handler, mws...)(newMessage("")) // prepares the statements
		require.NoError(t, err)
		trips.Store(0)
		_, err = chain(test.handler, mws...)(newMessage(""))
		require.NoError(t, err)
		assert.Equal(t, test.want, trips.Load(), test.name)
	}
}

// TestRoundTripsOfDuplicates: after a crash or a rebalance thousands of duplicates follow one another. Each except the
// first is found by one statement without a transaction, and a new message costs more only once.
func TestRoundTripsOfDuplicates(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	h, trips := newCountedHandle(t, url)
	begins := middleware.TxConfig{OnBegin: func(ctx context.Context, _ *message.Message) error {
		return h.execTx(ctx, "select 1")
	}}
	for _, test := range []struct {
		name string
		cfg  middleware.StackConfig
		want []int64 // for a duplicate, the duplicates after it, a new message, and the one after it
	}{
		{"inbox read first", middleware.StackConfig{}, []int64{2, 1, 1, 4, 3}},
		{"OnBegin may have set the tenant", middleware.StackConfig{Tx: begins}, []int64{4, 4, 4, 5, 5}},
	} {
		handler := chain(book(h), stack(t, h, test.cfg)...)
		deliver := func(msg *message.Message) int64 {
			trips.Store(0)
			_, err := handler(msg.Copy())
			require.NoError(t, err, test.name)
			return trips.Load()
		}
		again := newMessage("")
		for range 3 { // prepares the statements
			deliver(again)
		}
		deliver(newMessage(""))
		got := []int64{deliver(again)}
		locks := "select xmax::text from inbox where message_id = '" + again.UUID + "'"
		lockedBy := value[string](t, h, locks)
		got = append(got, deliver(again), deliver(again))
		assert.Equal(t, test.want[1] > 1, lockedBy != value[string](t, h, locks), test.name)
		for range 2 {
			got = append(got, deliver(newMessage("")))
		}
		assert.Equal(t, test.want, got, test.name)
		assert.Equal(t, 1, effects(t, h, again), test.name)
	}
}

// TestNamedMessagesAreLookedUp, each by its index: scanning the table in order would find them too, but read all of it.
// A message that is named twice is found once.
func TestNamedMessagesAreLookedUp(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, processed_at)
		SELECT 'shop/' || i % 3, i, now() FROM generate_series(1, 20000) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, payload)
		SELECT 'shop', i, 'orders', 'processing', '' FROM generate_series(1, 20000) i`)
	h.exec(t, `ANALYZE inbox, inbox_queue`)
	ids := []string{"7", "19996", "7"}
	for name, s := range map[string]struct {
		sql  string
		args []any
	}{
		"inbox": {sqltext.Inbox.Page["ids"], scanArgs(ids, "shop/1", "shop/1", "shop/1")},
		"queue": {sqltext.Queue.Page["ids"], scanArgs(ids, "shop", "shop", "shop")},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, pgx.BeginFunc(t.Context(), h.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), sqltext.WalkIndexes); err != nil {
					return err
				}
				var text []byte
				explain := "EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS, TIMING OFF) "
				err := tx.QueryRow(t.Context(), explain+sqltext.Tables{}.Render(s.sql), s.args...).Scan(&text)
				if err != nil {
					return fmt.Errorf("explain: %w", err)
				}
				p := planOf(t, text)
				assert.InDelta(t, 2, p.Rows, 0, "%s", text)
				assert.Less(t, p.Hit+p.Read, int64(50), "%s", text)
				return nil
			}))
		})
	}
}

// scanArgs returns the arguments of a scan for named rows.
func scanArgs(names []string, owners ...string) []any {
	return []any{"", "", "", "", "", "", []string{}, 100, 100, int64(math.MaxInt64), "", "-infinity", "", 0, owners, names,
		"",
		int64(math.MaxInt64), 0}
}

// keptStatements lists statements of a Store whose plans connections keep.
var keptStatements = []string{
	"EnqueueMessages", "ClaimReady", "ClaimTopics", "ClaimPages", "AckMessages", "AbandonMessages", "FailMessages",
	"ReleaseMessages",
}

// TestStoresKeepPlans: statements that a Store runs for each message or batch are prepared once per connection, and so
// planned once.
func TestStoresKeepPlans(t *testing.T) {
	parallel(t)
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	ctx, store, owner := t.Context(), storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	round := func(prefix string) {
		for _, it := range numberedItems(prefix, 4) {
			storeAll(t, store, it)
		}
		msgs := claimed(t, store, owner, 4)
		require.Len(t, msgs, 4)
		settles(t, 1)(store.Ack(ctx, owner, msgs[0].ID))
		settles(t, 1)(store.Abandon(ctx, owner, "", time.Hour, msgs[1].ID))
		settles(t, 1)(store.Fail(ctx, owner, "", msgs[2].ID))
		settles(t, 1)(store.Release(ctx, owner, msgs[3].ID))
		h.exec(t, "TRUNCATE inbox_queue")
	}
	prepared := func(statement string) []time.Time {
		return column[time.Time](t, h, "SELECT prepare_time FROM pg_prepared_statements WHERE statement = $1",
			sqltext.Tables{}.Render(statement))
	}
	statements := map[string]string{
		"Enqueue": sqltext.EnqueueMessages, "Claim": sqltext.ClaimPages, "Ack": sqltext.AckMessages,
		"Abandon": sqltext.AbandonMessages, "Fail": sqltext.FailMessages, "Release": sqltext.ReleaseMessages,
	}
	first := map[string][]time.Time{}
	round("first")
	for what, statement := range statements {
		first[what] = prepared(statement)
		assert.Len(t, first[what], 1, what)
	}
	round("second")
	for what, statement := range statements {
		assert.Equal(t, first[what], prepared(statement), "%s was prepared again", what)
	}
}

// TestKeptPlansAreGoodForATableThatWasEmpty: plans are made once per connection, here while the table has no page after
// a vacuum, when a full scan costs nothing. They are still good when it is full, until it is analyzed.
func TestKeptPlansAreGoodForATableThatWasEmpty(t *testing.T) {
	extended(t)
	parallel(t)
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	h.exec(t, "ALTER TABLE inbox_queue SET (autovacuum_enabled = off)") // autovacuum would cause new plans
	h.exec(t, "VACUUM (ANALYZE) inbox_queue")
	ctx, store, owner := t.Context(), storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	keeping := (*core.DB)(h.db).PlanCached()
	var kept []planned
	for _, s := range queueStatements() {
		if slices.ContainsFunc(keptStatements, func(name string) bool { return strings.HasPrefix(s.name, name) }) {
			kept = append(kept, s)
			require.NoError(t, drive.Collect(ctx, keeping, func(drive.Rows) error {
				return nil
			}, sqltext.Tables{}.Render(s.sql), s.args...), s.name)
		}
	}
	require.GreaterOrEqual(t, len(kept), len(keptStatements))
	assert.Equal(t, "auto", value[string](t, h, "show plan_cache_mode"), "the settings have ended with the statements")
	h.exec(t, "DELETE FROM inbox_queue") // keeps the plans
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at) SELECT 'plan', i, 'orders', 'processing',
		CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, 50000) i`)
	for _, s := range kept {
		require.NoError(t, pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local plan_cache_mode = force_generic_plan"); err != nil {
				return err
			}
			s.checkKept(t, tx)
			return nil
		}))
	}
	began := time.Now()
	msgs := claimed(t, store, owner, 500)
	require.Len(t, msgs, 500)
	settles(t, 500)(store.Ack(ctx, owner, idsOf(msgs)...))
	t.Logf("500 of 50,000 messages in %s", time.Since(began))
}

// TestClaimsBeforeTheFirstAnalyze: claims and acks of many rows are nearly as fast with the statistics of an empty
// table as with those of the full one.
func TestClaimsBeforeTheFirstAnalyze(t *testing.T) {
	extended(t)
	parallel(t)
	drains := func(statements ...string) func() time.Duration {
		h := newPgxHandle(t, newMigratedDatabase(t))
		h.exec(t, "alter table inbox_queue set (autovacuum_enabled = off)")
		store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
		h.exec(t, "insert into inbox_queue (source, message_id, topic, payload, state) select 'shop', i, 'orders', '', "+
			"'processing' from generate_series(1, 20000) i")
		for _, s := range statements {
			h.exec(t, s)
		}
		return func() time.Duration {
			began := time.Now()
			msgs := claimed(t, store, owner, 500)
			require.Len(t, msgs, 500)
			settles(t, 500)(store.Ack(t.Context(), owner, idsOf(msgs)...))
			return time.Since(began)
		}
	}
	blind, seeing := drains(), drains("analyze inbox_queue")
	var before, after []time.Duration
	for range 11 {
		// alternating, so that the machine's load is the same for both; most runs come after the fifth, when a prepared
		// statement may change its plan
		before, after = append(before, blind()), append(after, seeing())
	}
	slices.Sort(before)
	slices.Sort(after)
	typical, control := before[len(before)/2], after[len(after)/2]
	t.Logf("500 messages in %s before, in %s after", typical, control)
	assert.Less(t, typical, 5*control+100*time.Millisecond)
}
