package integration_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimsPassWhatVacuumMayNotClean: while a transaction of somebody's is open, what was claimed and acked stays in
// the index. A claim walks none of it, or, while a transaction that writes holds the mark, no more than the last part.
// The control starts where a claim without a mark does.
func TestClaimsPassWhatVacuumMayNotClean(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	const rows = 4000
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	claim, pages := sqltext.Tables{}.Render(sqltext.ClaimTopics), sqltext.Tables{}.Render(sqltext.ClaimPages)
	claimsOf := func(store *queue.Store, limit int) (acked int, from []any) {
		owner := queue.NewOwner()
		seen.take()
		msgs := claimed(t, store, owner, limit)
		for _, s := range seen.take() {
			if s.SQL == claim || s.SQL == pages {
				from = s.Args[len(s.Args)-19:] // what comes before is how it is sent
			}
		}
		acked, err := store.Ack(t.Context(), owner, idsOf(msgs)...)
		require.NoError(t, err)
		return acked, from
	}
	visited := func(args []any) (blocks int64) {
		ctx := context.WithValue(t.Context(), explaining{}, true)
		tx, err := h.pool.Begin(ctx)
		require.NoError(t, err)
		defer tx.Rollback(ctx)
		var text []byte
		require.NoError(t, tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+claim, args...).Scan(&text))
		var root []struct {
			Plan struct {
				Hit  int64 `json:"Shared Hit Blocks"`
				Read int64 `json:"Shared Read Blocks"`
			}
		}
		require.NoError(t, json.Unmarshal(text, &root))
		return root[0].Plan.Hit + root[0].Plan.Read
	}
	fromStart := func(args []any) []any {
		args = slices.Clone(args)
		args[6] = []int64{0}
		return args
	}

	reader, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer reader.Rollback(context.WithoutCancel(t.Context()))
	_, err = reader.Exec(t.Context(), "select count(*) from inbox_queue")
	require.NoError(t, err)
	store := newStore(t, h, queue.StoreConfig{})
	enqueued(t, store, numberedItems("pinned", rows)...)
	var last []any
	for done := 0; done < rows; {
		var n int
		n, _ = claimsOf(store, 500)
		done += n
	}
	_, last = claimsOf(store, 500)
	control := visited(fromStart(last))
	require.Greater(t, control, int64(rows/20), "the transaction keeps nothing in the index")
	eventually(t, func() bool {
		// now and then a claim starts at the beginning, and while others write on the server at its overlap
		_, last = claimsOf(store, 500)
		return visited(last)*2 < control
	}, "a claim walks less than half of what was claimed before")

	end := openTx(t, h, func(ctx context.Context) error {
		_, err := store.Enqueue(ctx, item("late", "late"))
		return err
	})
	newcomer := newStore(t, h, queue.StoreConfig{}) // it has no mark yet
	eventually(t, func() bool {
		_, last = claimsOf(newcomer, 500)
		return visited(last)*2 < control
	}, "a claim that waits for somebody's commit walks the last part")
	assert.GreaterOrEqual(t, visited(fromStart(last)), control)
	end(true)
}
