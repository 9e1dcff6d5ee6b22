package integration_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// newLeaves is a database whose outbox has leaves that end below these ids.
func newLeaves(t testing.TB, ends ...int64) handle {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	intoLeaves(t, h, ends...)
	return h
}

// write writes n messages, each with the state that SQL makes of its number n: columns published_at, dead_at and so on.
func (h handle) writeRows(t testing.TB, n int, set string) {
	t.Helper()
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata)
		SELECT 'u' || n, 't', 'k' || n % 7, convert_to('payload ' || n, 'UTF8'), '{"a": "b"}' FROM generate_series(1, `+
		fmt.Sprint(n)+`) n`)
	if set != "" {
		h.exec(t, `UPDATE outbox SET `+set)
	}
}

const settledLongAgo = `published_at = now() - interval '2 days', created_at = now() - interval '2 days'`

// roll rolls the outbox with a retention of a day.
func (h handle) roll(t testing.TB, change ...func(*admin.RollConfig)) admin.RollResult {
	t.Helper()
	r, err := h.tryRoll(t, change...)
	require.NoError(t, err)
	return r
}

func (h handle) tryRoll(t testing.TB, change ...func(*admin.RollConfig)) (admin.RollResult, error) {
	t.Helper()
	a, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	cfg := admin.RollConfig{Retention: 24 * time.Hour}
	for _, c := range change {
		c(&cfg)
	}
	return a.RollOutbox(t.Context(), cfg)
}

// did lists what was done to leaves, in that order.
func did(r admin.RollResult) (list []string) {
	for _, l := range r.Leaves {
		list = append(list, string(l.Action)+" "+l.Name)
	}
	return list
}

// ids lists those in a table.
func (h handle) ids(t testing.TB, table string) []int64 {
	t.Helper()
	list := column[int64](t, h, `SELECT id FROM `+table+` ORDER BY id`)
	slices.Sort(list)
	return list
}

// TestRoll makes leaves ahead, empties what is old but for what must stay, and drops what is empty and far behind.
func TestRoll(t *testing.T) {
	t.Parallel()
	h := newLeaves(t, 10, 20, 30, 40, 50)
	h.writeRows(t, 42, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id = 5`) // dead
	h.exec(t, `UPDATE outbox SET published_at = now() WHERE id = 12`)                // young
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 13`)                 // ready
	h.exec(t, `UPDATE outbox SET published_at = NULL, due_at = now() WHERE id = 14`) // delayed
	h.exec(t, `UPDATE outbox SET dead_at = now() - interval '3 days' WHERE id = 15`) // discarded
	tried := h.roll(t, func(c *admin.RollConfig) { c.DryRun = true })
	want := []string{"made outbox_p5", "made outbox_p6", "made outbox_p7", "emptied outbox_p0",
		"emptied outbox_p1", "emptied outbox_p2", "emptied outbox_p3"}
	require.Equal(t, want, did(tried))
	require.Equal(t, 42, h.count(t, `SELECT count(*) FROM outbox`), "a dry run does nothing")
	require.Zero(t, h.count(t, `SELECT count(*) FROM outbox_audit`))

	var steps []int
	r := h.roll(t, func(c *admin.RollConfig) {
		c.At, c.Reason = tried.At, "cron"
		c.Progress = func(_ context.Context, r admin.RollResult) { steps = append(steps, len(r.Leaves)) }
	})
	require.Equal(t, want, did(r))
	require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7}, steps)
	require.Equal(t, []int64{5, 12, 13, 14, 40, 41, 42}, h.ids(t, "outbox"))
	require.Equal(t, []int64{12, 13, 14}, h.ids(t, "outbox_p1"))
	require.Equal(t, []int{3, 4, 0, 4, 35}, []int{r.Made, r.Emptied, r.Dropped, int(r.PutBack), int(r.Removed)})
	require.Equal(t, int64(r.Removed), value[int64](t, h, `SELECT touched FROM outbox_audit WHERE action = 'roll'
		AND reason = 'cron' AND actor = 'test' AND ended_at IS NOT NULL AND outcome = ''`))
	require.Equal(t, "FOR VALUES FROM ('72') TO ('82')", value[string](t, h,
		`SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'outbox_p7'`))
	require.Equal(t, value[string](t, h, `SELECT reloptions::text FROM pg_class WHERE relname = 'outbox_p4'`),
		value[string](t, h, `SELECT reloptions::text FROM pg_class WHERE relname = 'outbox_p7'`))
	require.Equal(t, 7, h.count(t, `SELECT count(*) FROM pg_indexes WHERE tablename = 'outbox_p7'`))

	// Leaf 2 is empty and far enough behind only now; leaves 0 and 1 have messages that stay.
	h.exec(t, `SELECT setval('outbox_id_seq', 55)`)
	r = h.roll(t)
	require.Equal(t, []string{
		"made outbox_p8", "made outbox_p9", "kept outbox_p1", "emptied outbox_p4", "dropped outbox_p2",
	}, did(r))
	require.Equal(t, []int64{5, 12, 13, 14}, h.ids(t, "outbox"))
	require.Equal(t, []string{"kept outbox_p1"}, did(h.roll(t)), "there is nothing left to do")
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (25, 'late', 't', 'p')`)
	require.Equal(t, []int64{25}, h.ids(t, "outbox_default"), "what has no leaf any more has a place")
}
