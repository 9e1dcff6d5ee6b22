package integration_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestFetchPrunes: what a forwarder reads and settles costs an outbox in partitions the pages that it costs a plain
// one, although nothing was known of the ids when the statements were planned.
func TestFetchPrunes(t *testing.T) {
	extended(t)
	needsPlainOutbox(t) // it compares one with one in partitions
	t.Parallel()
	noLeaks(t)
	const partitions, size, pending = 8, 4000, 2000
	const last = partitions * size
	const owner = "00000000-0000-0000-0000-000000000001"
	plain, cut := newPgxHandle(t, newMigratedDatabase(t)), newPgxHandle(t, newMigratedDatabase(t))
	ends := make([]int64, partitions)
	for i := range ends {
		ends[i] = int64(i+1)*size + 1
	}
	ends[partitions-1] = 1e9 // as any is that is written to, what a read passes by included
	cutOutbox(t, cut, append(ends, 2e9, 3e9, 4e9)...)
	for _, h := range []handle{plain, cut} {
		h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, published_at)
			SELECT i, 'events', 'key-' || i, repeat('x', 200)::bytea,
			CASE WHEN i <= $1::int THEN now() END FROM generate_series(1, $2::int) i`, last-pending, last)
		h.exec(t, `INSERT INTO outbox_lanes (scope, lane, owner, epoch) SELECT '', l, $1::uuid, 1
			FROM generate_series(0, 63) l`, owner)
		h.exec(t, "INSERT INTO outbox_life DEFAULT VALUES")
		h.exec(t, "VACUUM (ANALYZE)")
	}
	var ids []int64
	for id := int64(last - pending + 1); len(ids) < 100; id += 3 {
		ids = append(ids, id)
	}
	none := []int64{}
	from := func(mark int64) []any {
		return []any{
			"", owner, none, none, none, none, repeated(64, 1), repeated(64, mark), repeated(64, 100), repeated(64, 100),
			[]string{}, int64(32768), int64(8192),
		}
	}
	life := sqltext.Tables{}.Render("SELECT {life}")
	old := plain.count(t, `SELECT current_setting('server_version_num')::int`) < 140000
	for _, test := range []struct {
		name, sql string
		args      func(h handle) []any
		reading   bool
	}{
		{"Fetch at rest", sqltext.FetchApart, func(handle) []any { return from(last) }, true},
		{"Fetch", sqltext.FetchApart, func(handle) []any { return from(last - pending) }, true},
		{"FetchRange", sqltext.FetchRange, func(handle) []any { return from(last - pending) }, true},
		{"FetchRangeMore", sqltext.FetchRangeMore, func(handle) []any {
			return append(from(last), ids, true, none, []string{}, none, none, none, int64(0), []string{})
		}, true},
		{"Pending", sqltext.Pending, func(handle) []any { return []any{ids} }, false},
		{"SettlePublished", sqltext.SettlePublished, func(h handle) []any {
			return []any{ids, slices.Repeat([]string{"x"}, len(ids)), value[string](t, h, life), int64(0)}
		}, false},
		{"SettleSpan", sqltext.SettleSpan, func(h handle) []any {
			return []any{ids[0], ids[99], value[string](t, h, life), int64(0), none}
		}, false},
	} {
		pages := map[string]int64{}
		for name, h := range map[string]handle{"plain": plain, "cut": cut} {
			pages[name] = genericPages(t, h, test.sql, test.args(h), test.reading)
		}
		t.Logf("%s: %d pages, %d in partitions", test.name, pages["plain"], pages["cut"])
		if old && strings.HasPrefix(test.name, "Settle") {
			continue // for any arguments Postgres 13 plans an UPDATE that visits each partition: docs/run/partitions.md
		}
		assert.LessOrEqual(t, float64(pages["cut"]), 1.05*float64(pages["plain"])+1, test.name)
	}
}

// genericPages says how many pages a statement visits with a plan for any arguments, when all that it needs is in
// memory. What it did is rolled back.
func genericPages(t *testing.T, h handle, statement string, args []any, reading bool) int64 {
	t.Helper()
	var visited int64
	undo := fmt.Errorf("undo")
	literals := make([]string, len(args))
	for i, a := range args {
		literals[i] = literal(a)
	}
	run := func(q drive.Querier) {
		for _, s := range []string{
			"SET plan_cache_mode = force_generic_plan", "PREPARE looked AS " + sqltext.Tables{}.Render(statement),
		} {
			_, err := q.Exec(t.Context(), s)
			require.NoError(t, err, s)
		}
		var text []byte
		for range 3 { // the first reads catalogs
			require.NoError(t, drive.Collect(t.Context(), q, func(rows drive.Rows) error { return rows.Scan(&text) },
				"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looked("+strings.Join(literals, ", ")+")"))
			var root []struct {
				Plan struct {
					Hit  int64 `json:"Shared Hit Blocks"`
					Read int64 `json:"Shared Read Blocks"`
				}
			}
			require.NoError(t, json.Unmarshal(text, &root))
			visited = root[0].Plan.Hit + root[0].Plan.Read
		}
		_, err := q.Exec(t.Context(), "DEALLOCATE looked")
		require.NoError(t, err)
	}
	if reading {
		q, end, err := (*core.DB)(h.db).ReaderConn(t.Context())
		require.NoError(t, err)
		defer end()
		run(q)
		return visited
	}
	err := (*core.DB)(h.db).Transact(t.Context(), func(q drive.Querier) error {
		run(q)
		return undo
	})
	require.ErrorIs(t, err, undo)
	return visited
}
