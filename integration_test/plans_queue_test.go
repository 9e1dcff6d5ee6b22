package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// queueStatements lists the statements of the queue as they are run.
func queueStatements() []planned {
	const owner, some = "00000000-0000-0000-0000-000000000001", 200
	sources, ids := slices.Repeat([]string{"plan"}, some), make([]string, some)
	texts, payloads, numbers := slices.Repeat([]string{""}, some), slices.Repeat([][]byte{[]byte("x")}, some),
		make([]int64, some)
	for i := range some {
		ids[i], numbers[i] = fmt.Sprint(50_000+i), int64(i)
	}
	topics, metadata := slices.Repeat([]string{"orders"}, some), slices.Repeat([]string{"{}"}, some)
	settle := []any{owner, sources, ids}
	with := func(args ...any) []any { return slices.Concat(settle, args) }
	none, left := []string(nil), []int64{}
	claim := func(args ...any) []any {
		return append([]any{owner, 30.0, 200, none, int64(64 << 20), left}, args...)
	}
	// suspects, due messages, and those that were never claimed
	unlimited := []any{[]string{}, []int64{}, []int64{-2, 0, 0}, []int64{1, 100, 200},
		[]string{"-infinity", "-infinity", ""}, []int64{0, 0, 0}}
	limited := []any{[]string{"orders", "full", "other"}, []int64{2, 0, 3}, []int64{1, -1, 0, 1, -1, 0},
		[]int64{2, 200, 200, 2, 200, 200}, []string{"", "", "", "2020-01-01T00:00:00Z", "-infinity", "-infinity"},
		[]int64{40_000, 0, 0, 5, 0, 0}}
	delays := []float64{2, 4, 8}
	key := []string{"inbox_queue_pkey"}
	settled := []string{"inbox_queue_pkey", ""} // and by ctid
	both := []string{"inbox_queue_ready", "inbox_queue_waiting", ""}
	return []planned{
		{
			name: "ClaimReady", sql: sqltext.ClaimReady, args: claim(int64(0)),
			indexes: []string{"inbox_queue_ready", ""},
		},
		{
			name: "ClaimReady of a topic", sql: sqltext.ClaimReady,
			args:    []any{owner, 30.0, 200, []string{"orders"}, int64(64 << 20), left, int64(40_000)},
			indexes: []string{"inbox_queue_ready", ""},
		},
		{name: "ClaimTopics", sql: sqltext.ClaimTopics, indexes: both, args: claim(unlimited...)},
		{name: "ClaimTopics with limits", sql: sqltext.ClaimTopics, indexes: both, args: claim(limited...)},
		{name: "ClaimPages", sql: sqltext.ClaimPages, indexes: both, args: claim(unlimited...)},
		{name: "ClaimPages with limits", sql: sqltext.ClaimPages, indexes: both, args: claim(limited...)},
		{
			name: "ClaimExpired", sql: sqltext.ClaimExpired, args: claim(),
			indexes: []string{"inbox_queue_expiring", ""},
		},
		{name: "ReleaseLostClaims", sql: sqltext.ReleaseLostClaims, args: with(1000), indexes: both},
		{
			name: "ReapLeases", sql: sqltext.ReapLeases, args: []any{250, delays, 10, int64(0), "-infinity", "0", 1000, left,
				none},
			indexes: both,
		},
		{name: "RenewLeases", sql: sqltext.RenewLeases, args: with(30.0), indexes: key},
		{name: "AckMessages", sql: sqltext.AckMessages, args: with(false), indexes: settled},
		{name: "AbandonMessages", sql: sqltext.AbandonMessages, args: with("why", delays, 10, 0), indexes: settled},
		{name: "FailMessages", sql: sqltext.FailMessages, args: with("why", 1), indexes: settled},
		{name: "HoldMessages", sql: sqltext.HoldMessages, args: with(), indexes: key},
		{name: "StillHeld", sql: sqltext.StillHeld, args: with(0), indexes: key},
		{name: "ReleaseMessages", sql: sqltext.ReleaseMessages, args: with("why", 0.0), indexes: settled},
		{name: "EnqueueMessages", sql: sqltext.EnqueueMessages, indexes: settled,
			args: []any{
				sources, ids, topics, texts, payloads, metadata, payloads, texts, texts, numbers, make([]float64, some),
			}},
		{name: "SeeMessage", sql: sqltext.SeeMessage, args: []any{"plan", "50000", []byte("x")}, indexes: key},
		{name: "GetMessage", sql: sqltext.GetMessage, args: []any{"plan", "50000"}, indexes: key},
		{name: "MarkProcessed", sql: sqltext.MarkProcessed, args: []any{"plan", "50000", false}, indexes: key},
		{name: "MarkProcessing", sql: sqltext.MarkProcessing, args: []any{"plan", "50000"}, indexes: key},
		{name: "MarkDead", sql: sqltext.MarkDead, args: []any{"plan", "50000", "why"}, indexes: key},
		{
			name: "ExpireMessages", sql: sqltext.ExpireMessages, args: []any{250, left, none},
			indexes: []string{"inbox_queue_expiring", ""},
		},
		// and by ctid
		{
			name: "CleanQueue", sql: sqltext.CleanQueue, args: []any{3600.0, 1000, ""},
			indexes: []string{"inbox_queue_done", "inbox_queue_seen", ""},
		},
	}
}

// queueScans returns the nodes that read the queue.
func queueScans(p plan) (list []plan) {
	if (p.Relation == "inbox_queue" && p.Type != "Bitmap Heap Scan" && p.Type != "ModifyTable") ||
		p.Type == "Bitmap Index Scan" && p.Index != "outbox_topics_pkey" {
		list = append(list, p)
	}
	for _, child := range p.Plans {
		list = append(list, queueScans(child)...)
	}
	return list
}

// check reads a plan of a statement of the queue.
func (s planned) check(t testing.TB, explained []byte) {
	t.Helper()
	scans := queueScans(planOf(t, explained))
	require.NotEmpty(t, scans, s.name)
	for _, scan := range scans {
		assert.True(t, slices.Contains(s.indexes, scan.Index) && (scan.Index != "" || scan.Type == "Tid Scan"),
			"%s has a %s of %s", s.name, scan.Type, scan.Index)
		if scan.Index == "inbox_queue_pkey" {
			assert.Contains(t, scan.Cond, "message_id =", "%s looks up messages and does not scan the table", s.name)
		}
	}
}

// checkKept checks the plan that a connection keeps of a statement.
func (s planned) checkKept(t testing.TB, tx pgx.Tx) {
	t.Helper()
	var name string
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT name FROM pg_prepared_statements WHERE statement = $1",
		sqltext.Tables{}.Render(s.sql)).Scan(&name), s.name)
	var text []byte
	explain := fmt.Sprintf("EXPLAIN (FORMAT JSON) EXECUTE %s (%s)", pgx.Identifier{name}.Sanitize(), literals(s.args))
	require.NoError(t, tx.QueryRow(t.Context(), explain, pgx.QueryExecModeSimpleProtocol).Scan(&text), s.name)
	s.check(t, text)
}

// TestPlansOfQueueInTransactions: a connection keeps the plans of statements that it has run a few times. Plans made in
// a handler's transaction while the table was empty are still good when it is full.
func TestPlansOfQueueInTransactions(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, "ALTER TABLE inbox_queue SET (autovacuum_enabled = off)") // autovacuum would cause new plans
	h.exec(t, "TRUNCATE inbox_queue")                                   // like after the migration: never vacuumed
	conn, err := h.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	inTx := func(fn func(tx pgx.Tx, s planned, statement string)) {
		for _, s := range queueStatements() {
			tx, err := conn.Begin(t.Context())
			require.NoError(t, err)
			fn(tx, s, sqltext.Tables{}.Render(s.sql))
			require.NoError(t, tx.Rollback(t.Context()))
		}
	}
	inTx(func(tx pgx.Tx, s planned, statement string) {
		for range 10 {
			_, err := tx.Exec(t.Context(), statement, s.args...)
			require.NoError(t, err, s.name)
		}
	})
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at) SELECT 'plan', i, 'orders', 'processing',
		CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, 50000) i`)
	inTx(func(tx pgx.Tx, s planned, _ string) { s.checkKept(t, tx) })
}

// TestPlansOfQueue checks the plans of the queue's statements, ready and delayed, with fresh statistics and with some
// from when the table looked very different. None scans the whole table. With fewer rows scanning all is as good.
func TestPlansOfQueue(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "ALTER TABLE inbox_queue SET (autovacuum_enabled = off)") // it would refresh stale statistics
	h.exec(t, "ALTER TABLE inbox_queue SET UNLOGGED")                   // saves time, and is irrelevant to the planner
	check := func(state string) {
		t.Run(state, func(t *testing.T) {
			for _, s := range queueStatements() {
				var text []byte
				require.NoError(t,
					h.pool.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) "+sqltext.Tables{}.Render(s.sql), s.args...).Scan(&text),
					s.name)
				s.check(t, text)
			}
		})
	}
	rows := func(n int, due string) {
		h.exec(t, strings.ReplaceAll(`INSERT INTO inbox_queue (source, message_id, topic, state, payload, due_at)
			SELECT 'plan', (SELECT coalesce(max(id), 0) FROM inbox_queue) + i, 'orders', 'processing', convert_to(repeat('x', 50), 'UTF8'), DUE FROM generate_series(1, $1::int) i`, "DUE", due), n)
	}
	done := func() { // all but a few rows
		h.exec(t, "UPDATE inbox_queue SET state = 'done', done_at = now() WHERE state = 'processing' AND id % 1000 > 0")
	}
	analyze := func() { h.exec(t, "ANALYZE inbox_queue") }

	rows(100_000, "NULL")
	check("100,000 ready, never analyzed")
	analyze()
	check("100,000 ready, fresh")
	done()
	check("100,000 done, statistics of ready ones")
	analyze()
	check("100,000 done, fresh")
	more := rounds(100_000, 450_000)
	rows(more, "NULL")
	rows(more, "now() + interval '1 day'")
	check(fmt.Sprint(more, " ready, and as many delayed, statistics of done ones"))
	analyze()
	check(fmt.Sprint(more, " ready, and as many delayed, fresh"))
	h.exec(t, "TRUNCATE inbox_queue")
	h.exec(t, "VACUUM (ANALYZE) inbox_queue")
	rows(100_000, "now() + interval '1 day'")
	check("100,000 delayed, statistics of an empty table")
}
