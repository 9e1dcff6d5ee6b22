package integration_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimsPassWhatVacuumMayNotClean: an open transaction of another session keeps claimed and acked rows in the
// index. A claim scans none of these, or, while a writing transaction holds the cursor back, only the last part. The
// control starts where a claim without a cursor starts.
func TestClaimsPassWhatVacuumMayNotClean(t *testing.T) {
	extended(t)
	parallel(t)
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
				from = claimArgs(s.Args)
			}
		}
		acked, err := store.Ack(t.Context(), owner, idsOf(msgs)...)
		require.NoError(t, err)
		return acked, from
	}
	visited := func(args []any) int64 { return blocksVisited(t, h, claim, args) }
	fromStart := func(args []any) []any {
		args = slices.Clone(args)
		args[11] = make([]int64, len(args[11].([]int64)))
		return args
	}

	begin(t, h, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM inbox_queue")
	store := storeOn(t, h, queue.StoreConfig{})
	storeAll(t, store, numberedItems("pinned", rows)...)
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
		// a claim sometimes starts at the beginning or, while others write on the server, at its overlap
		_, last = claimsOf(store, 500)
		return visited(last)*2 < control
	}, "a claim scans less than half of the rows claimed before")

	end := openTx(t, h, func(ctx context.Context) error {
		_, err := store.Enqueue(ctx, item("late", "late"))
		return err
	})
	newcomer := storeOn(t, h, queue.StoreConfig{}) // it has no cursor yet
	eventually(t, func() bool {
		_, last = claimsOf(newcomer, 500)
		return visited(last)*2 < control
	}, "a claim during an open transaction scans only the last part")
	assert.Greater(t, visited(fromStart(last))*10, control*9, "rows claimed before are still in the index")
	end(true)
}

// TestReapingPassesWhatVacuumMayNotClean: reaping begins at the first unfinished message, and so do full scans of
// claims. The few that begin earlier find rows inserted by SQL.
func TestReapingPassesWhatVacuumMayNotClean(t *testing.T) {
	extended(t)
	parallel(t)
	const rows = 4000
	reap, pages := sqltext.Tables{}.Render(sqltext.ReapLeases), sqltext.Tables{}.Render(sqltext.ClaimPages)
	seen := slowWalks{reap: reap, pages: pages}
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	begin(t, h, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM inbox_queue")
	store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	storeAll(t, store, numberedItems("pinned", rows)...)
	for done := 0; done < rows; {
		n, err := store.Ack(t.Context(), owner, idsOf(claimed(t, store, owner, 500))...)
		require.NoError(t, err)
		done += n
	}
	// retries leave as many entries in the other index
	storeAll(t, store, numberedItems("retried", rows/4)...)
	for range 2 {
		eventually(t, func() bool {
			msgs := claimed(t, store, owner, 500)
			_, err := store.Abandon(t.Context(), owner, "", time.Microsecond, idsOf(msgs)...)
			require.NoError(t, err)
			return len(msgs) == 0 || msgs[0].Attempts > 1
		}, "all messages are retried")
	}
	storeAll(t, store, numberedItems("live", 3)...)
	require.NotEmpty(t, claimed(t, store, queue.NewOwner(), 500))

	var reaps, fullReads [][]any // arguments of the statements
	ask := func() {
		seen.take()
		claimed(t, store, queue.NewOwner(), 500)
		for _, s := range seen.take() {
			switch s.SQL {
			case reap:
				reaps = append(reaps, reapArgs(s.Args))
			case pages:
				fullReads = append(fullReads, claimArgs(s.Args))
			}
		}
	}
	patiently := func(condition func() bool, what string) { // each attempt waits twenty times as long as the last one took
		for tries := 1; !eventuallyTrue(condition); tries++ {
			t.Logf("not yet: %s: %d full reads and %d reaps; the last: %v, %v", what, len(fullReads), len(reaps),
				fullReads[max(0, len(fullReads)-1):], reaps[max(0, len(reaps)-1):])
			require.Less(t, tries, 5, what)
		}
	}
	var control, came int64
	patiently(func() bool {
		ask()
		if len(reaps) == 0 {
			return false
		}
		args := slices.Clone(reaps[len(reaps)-1])
		came = blocksVisited(t, h, reap, args)
		args[3], args[4], args[5] = int64(math.MinInt64), "-infinity", "0"
		control = blocksVisited(t, h, reap, args)
		return came*10 < control
	}, "reaping visits less than 10% of the blocks of reaping from the beginning")
	patiently(func() bool {
		ask()
		return len(fullReads) > 0 && readyFrom(fullReads[len(fullReads)-1]) >= rows
	}, "a full scan begins at the first unfinished message")
}

// TestASlowReapDelaysNoOther: a single slow reap on a stalled machine does not stop claims from reaping for twenty
// times as long.
func TestASlowReapDelaysNoOther(t *testing.T) {
	extended(t)
	parallel(t)
	reap := sqltext.Tables{}.Render(sqltext.ReapLeases)
	seen := slowOnce{statement: reap, by: patience / 15}
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	store := storeOn(t, h, queue.StoreConfig{})
	claimed(t, store, queue.NewOwner(), 1)
	seen.take()
	eventually(t, func() bool {
		claimed(t, store, queue.NewOwner(), 1)
		return slices.ContainsFunc(seen.take(), func(s statementSeen) bool { return s.SQL == reap })
	}, "the claim reaps again")
}

// slowOnce delays a statement the first time.
type slowOnce struct {
	statementLog
	statement string
	by        time.Duration
	once      sync.Once
}

func (w *slowOnce) TraceQueryStart(ctx context.Context, c *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL == w.statement {
		w.once.Do(func() {
			time.Sleep(w.by)
		})
	}
	return w.statementLog.TraceQueryStart(ctx, c, q)
}

// slowWalks delays scans from the beginning, as a large table does.
type slowWalks struct {
	statementLog
	reap, pages string
}

func (w *slowWalks) TraceQueryStart(ctx context.Context, c *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL == w.reap && reapArgs(q.Args)[3] == int64(math.MinInt64) ||
		q.SQL == w.pages && readyFrom(claimArgs(q.Args)) == 0 {
		time.Sleep(50 * time.Millisecond)
	}
	return w.statementLog.TraceQueryStart(ctx, c, q)
}

// The arguments before only affect how it is sent.
func reapArgs(args []any) []any { return args[len(args)-9:] }

// claimArgs returns the arguments of ClaimTopics: those before only affect how it is sent.
func claimArgs(args []any) []any { return args[len(args)-12:] }

// readyFrom returns the id behind which a claim reads messages that were never claimed.
func readyFrom(args []any) int64 {
	return args[11].([]int64)[slices.Index(args[10].([]string), "")]
}

// blocksVisited counts the blocks that a statement reads.
func blocksVisited(t *testing.T, h handle, statement string, args []any) int64 {
	t.Helper()
	ctx := context.WithValue(t.Context(), explaining{}, true)
	tx, err := h.pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx)
	var text []byte
	require.NoError(t, tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement, args...).Scan(&text))
	p := planOf(t, text)
	return p.Hit + p.Read
}
