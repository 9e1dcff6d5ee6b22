package integration_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimsPassPausedTopicsInPages: many messages of a paused topic come before a few others, new and due. Each
// statement of a claim reads at most a page of them, and the others are found. With OUTBOX_LONG there are a million.
func TestClaimsPassPausedTopicsInPages(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	paused, others := 35_000, 100
	if long {
		paused = 1_000_000
	}
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	ad, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	require.NoError(t, ad.Pause(t.Context(), admin.TopicAct{Topic: "paused", Reason: "test"}))
	h.exec(t, "ALTER TABLE inbox_queue SET (autovacuum_enabled = off)")
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at) SELECT 'paused', i, 'paused', 'processing',
		CASE WHEN i % 2 = 0 THEN now() - interval '1 hour' END FROM generate_series(1, $1::int) i`, paused)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at) SELECT 'others', i, 'others', 'processing',
		CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, $1::int) i`, others)
	h.exec(t, "ANALYZE inbox_queue")
	blocks := func(statement string, args []any) (n int64) {
		ctx := context.WithValue(t.Context(), explaining{}, true)
		tx, err := h.pool.Begin(ctx)
		require.NoError(t, err)
		defer tx.Rollback(ctx)
		var text []byte
		require.NoError(t, tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement, args...).Scan(&text))
		var root []struct {
			Plan struct {
				Hit  int64 `json:"Shared Hit Blocks"`
				Read int64 `json:"Shared Read Blocks"`
			}
		}
		require.NoError(t, json.Unmarshal(text, &root))
		return root[0].Plan.Hit + root[0].Plan.Read
	}
	all, pages := sqltext.Tables{}.Render(sqltext.ClaimTopics), sqltext.Tables{}.Render(sqltext.ClaimPages)
	store, owner := newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
	seen.take()
	began := time.Now()
	msgs := claimed(t, store, owner, others)
	took := time.Since(began)
	require.NotEmpty(t, msgs, "a claim continues until it finds a message")
	statements := 0
	var first []any
	for _, s := range seen.take() {
		assert.NotEqual(t, all, s.SQL, "a full read has pages")
		if s.SQL == pages {
			if statements++; first == nil {
				first = s.Args[len(s.Args)-20:]
			}
		}
	}
	settles(t, len(msgs))(store.Release(t.Context(), owner, idsOf(msgs)...))
	before, after := blocks(all, first), blocks(pages, first)
	t.Logf("%d messages of a paused topic: %d blocks in one statement, %d in a page; "+
		"%d of %d others found by %d statements in %s",
		paused, before, after, len(msgs), others, statements, took)
	assert.Greater(t, statements, paused/2/10_000)
	assert.Less(t, after, min(int64(100_000), before+before/2),
		"a page of new messages, one of due ones, and one for suspects")
	handle := func(context.Context, *queue.Message) error { return nil }
	d := dispatching(t, store, quickDispatcher(map[string]queue.Handler{"others": {Handle: handle}}))
	eventually(t, func() bool {
		return h.count(t, "select count(*) from inbox_queue where state = 'done'") == others
	}, "all of the others are handled")
	drain(t, d)
	require.NoError(t, ad.Resume(t.Context(), admin.TopicAct{Topic: "paused", Reason: "test"}))
	require.NotEmpty(t, claimed(t, store, owner, 10), "the skipped messages are found")
}
