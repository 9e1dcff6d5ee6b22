package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// keptStatements lists statements of a Store whose plans connections keep.
var keptStatements = []string{
	"EnqueueMessages", "ClaimReady", "ClaimTopics", "ClaimPages", "AckMessages", "AbandonMessages", "FailMessages",
	"ReleaseMessages",
}

// TestStoresKeepPlans: statements that a Store runs for each message or batch are prepared once per connection, and so
// planned once.
func TestStoresKeepPlans(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	ctx, store, owner := t.Context(), newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
	enqueued(t, store, numberedItems("kept", 4)...)
	msgs := claimed(t, store, owner, 4)
	require.Len(t, msgs, 4)
	settles(t, 1)(store.Ack(ctx, owner, msgs[0].ID))
	settles(t, 1)(store.Abandon(ctx, queue.Abandon{Owner: owner, Delay: time.Hour}, msgs[1].ID))
	settles(t, 1)(store.Fail(ctx, queue.Fail{Owner: owner}, msgs[2].ID))
	settles(t, 1)(store.Release(ctx, owner, msgs[3].ID))
	for what, statement := range map[string]string{
		"Enqueue": sqltext.EnqueueMessages, "Claim": sqltext.ClaimPages, "Ack": sqltext.AckMessages,
		"Abandon": sqltext.AbandonMessages, "Fail": sqltext.FailMessages, "Release": sqltext.ReleaseMessages,
	} {
		prepared := "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1"
		assert.Equal(t, 1, value[int](t, h, prepared, sqltext.Tables{}.Render(statement)), what)
	}
}

// TestKeptPlansAreGoodForATableThatWasEmpty: plans are made once per connection, here while the table has no page after
// a vacuum, when a full scan costs nothing. They are still good when it is full, until somebody analyzes it.
func TestKeptPlansAreGoodForATableThatWasEmpty(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	h.exec(t, "ALTER TABLE inbox_queue SET (autovacuum_enabled = off)") // autovacuum would cause new plans
	h.exec(t, "VACUUM (ANALYZE) inbox_queue")
	ctx, store, owner := t.Context(), newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
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
		name := value[string](t, h, "SELECT name FROM pg_prepared_statements WHERE statement = $1",
			sqltext.Tables{}.Render(s.sql))
		literals := make([]string, len(s.args))
		for i, arg := range s.args {
			literals[i] = literal(arg)
		}
		tx, err := h.pool.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "set local plan_cache_mode = force_generic_plan")
		require.NoError(t, err)
		var text []byte
		explain := fmt.Sprintf("EXPLAIN (FORMAT JSON) EXECUTE %s (%s)", pgx.Identifier{name}.Sanitize(),
			strings.Join(literals, ", "))
		require.NoError(t, tx.QueryRow(ctx, explain, pgx.QueryExecModeSimpleProtocol).Scan(&text), s.name)
		require.NoError(t, tx.Rollback(ctx))
		s.check(t, text)
	}
	began := time.Now()
	msgs := claimed(t, store, owner, 500)
	require.Len(t, msgs, 500)
	settles(t, 500)(store.Ack(ctx, owner, idsOf(msgs)...))
	t.Logf("500 of 50,000 messages in %s", time.Since(began))
}

// TestKeptPlansOfManySchemas: each schema has its own statements, of which pgx keeps 512 for a connection. While they
// fit none is prepared again; when they do not, each is, every time it is used.
func TestKeptPlansOfManySchemas(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	all := newTenants(t, "one", 4)
	for capacity, fits := range map[int]bool{512: true, len(all) * len(keptStatements) / 2: false} {
		h := pgxHandle(t, "pgx", all[0].DSN, func(cfg *pgxpool.Config) {
			cfg.MaxConns, cfg.ConnConfig.StatementCacheCapacity = 1, capacity
		})
		var stores []*queue.Store
		for _, who := range all {
			stores = append(stores, newStore(t, h.configured(t, outbox.DBConfig{Tables: who.Tables}), queue.StoreConfig{}))
		}
		round := func() {
			for i, s := range stores {
				owner := queue.NewOwner()
				enqueued(t, s, numberedItems(fmt.Sprint(capacity, "-", time.Now().UnixNano(), "-", i), 4)...)
				for _, settle := range []func(id queue.ID) (int, error){
					func(id queue.ID) (int, error) { return s.Ack(t.Context(), owner, id) },
					func(id queue.ID) (int, error) {
						return s.Abandon(t.Context(), queue.Abandon{Owner: owner, Delay: time.Hour}, id)
					},
					func(id queue.ID) (int, error) { return s.Fail(t.Context(), queue.Fail{Owner: owner}, id) },
					func(id queue.ID) (int, error) { return s.Release(t.Context(), owner, id) },
				} {
					msgs := claimed(t, s, owner, 1)
					require.Len(t, msgs, 1)
					settles(t, 1)(settle(msgs[0].ID))
				}
			}
		}
		acks := func() time.Time {
			return value[time.Time](t, h, "select max(prepare_time) from pg_prepared_statements "+
				"where statement like '%done_at = clock_timestamp()%'")
		}
		round()
		round()
		before := acks()
		round()
		if after := acks(); fits {
			assert.Equal(t, before, after, "acks were prepared again with a cache of %d statements", capacity)
		} else {
			assert.Greater(t, after, before, "with a cache of %d statements all are kept", capacity)
		}
	}
}
