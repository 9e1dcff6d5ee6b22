package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// planned is a statement of the forwarder with arguments as in production.
type planned struct {
	name    string
	sql     string
	args    []any
	indexes []string // indexes of the outbox; each scan must use one of them
	sorted  bool     // the index must return the rows in order
	always  bool     // even if the table is almost empty
	reading bool     // also as planned once on the connection for reading
	only    bool     // and only there
}

func plannedStatements() []planned {
	const lanes, some = 64, 100
	numbers, epochs, marks, limits, rewound := make([]int64, lanes), make([]int64, lanes), make([]int64, lanes),
		make([]int64, lanes), make([]int64, lanes)
	for i := range lanes {
		numbers[i], epochs[i], limits[i], rewound[i] = int64(i), 1, 32, 100
	}
	ids := make([]int64, some)
	delays, errs := make([]float64, some), make([]string, some)
	for i := range ids {
		ids[i] = int64(i + 1)
	}
	const owner = "00000000-0000-0000-0000-000000000001"
	none := []int64{}
	fetch := []any{
		"", owner, none, none, none, none, epochs, marks, limits, rewound, []string{}, int64(32768), int64(8192),
	}
	return []planned{
		{
			name: "Fetch", sql: sqltext.Fetch, args: fetch, indexes: []string{"outbox_ready"}, sorted: true, always: true,
			reading: true,
		},
		{name: "Fetch of a topic", sql: sqltext.Fetch, args: append(fetch[:10:10], []string{"events"}, int64(32768),
			int64(8192)),
			indexes: []string{"outbox_ready"}, sorted: true, always: true, reading: true},
		{
			name: "FetchApart", sql: sqltext.FetchApart, args: fetch, indexes: []string{"outbox_ready"}, sorted: true,
			reading: true, only: true,
		},
		{name: "FetchMoreApart", sql: sqltext.FetchMoreApart, args: append(fetch[:13:13], ids, false, repeated(lanes, 100),
			[]string{"closed"}, repeated(lanes, 1), repeated(lanes, 1000), repeated(lanes, 100), int64(3), []string{"a", "b"},
			[]string{"c"}),
			indexes: []string{"outbox_ready", "outbox_waiting", "outbox_pkey", "outbox_dead"}, reading: true, only: true},
		{name: "FetchMore", sql: sqltext.FetchMore, args: append(fetch[:13:13], ids, false, repeated(lanes, 100),
			[]string{"closed"}, repeated(lanes, 1), repeated(lanes, 1000), repeated(lanes, 100), int64(3), []string{"a", "b"},
			[]string{"c"}),
			indexes: []string{"outbox_ready", "outbox_waiting", "outbox_pkey", "outbox_dead"}, reading: true},
		{
			name: "FetchRange", sql: sqltext.FetchRange, args: fetch, indexes: []string{"outbox_pkey"}, sorted: true,
			reading: true, only: true,
		},
		{name: "FetchRangeMore", sql: sqltext.FetchRangeMore, args: append(fetch[:13:13], ids, false, repeated(lanes, 100),
			[]string{"closed"}, repeated(lanes, 1), repeated(lanes, 1000), repeated(lanes, 100), int64(3), []string{"a", "b"},
			[]string{"c"}),
			indexes: []string{"outbox_ready", "outbox_waiting", "outbox_pkey", "outbox_dead"}, reading: true, only: true},
		{
			name: "FetchPayloads", sql: sqltext.FetchPayloads, args: []any{ids, int64(32 << 20)},
			indexes: []string{"outbox_pkey"}, reading: true,
		},
		{name: "Sweep", sql: sqltext.Sweep, args: []any{numbers, marks, repeated(lanes, 1<<40), int64(100), []string{}},
			indexes: []string{"outbox_ready"}, always: true},
		{name: "Pending", sql: sqltext.Pending, args: []any{ids}, indexes: []string{"outbox_pkey"}},
		{
			name: "LoadBlocked", sql: sqltext.LoadBlocked, args: []any{numbers, marks, int64(78), []string{}, true},
			indexes: []string{"outbox_held", "outbox_dead"}, always: true, reading: true,
		},
		{
			name: "UnreadTopics", sql: sqltext.UnreadTopics, args: []any{int64(200), 30.0}, indexes: []string{"outbox_ready"},
			always: true,
		},
		{
			name: "PollOutbox", sql: sqltext.PollOutbox, args: []any{int64(some), false, []string{}},
			indexes: []string{"outbox_ready", "outbox_waiting"}, always: true,
		},
		{
			name: "PollOutbox of everything", sql: sqltext.PollOutbox, args: []any{int64(0), true, []string{}},
			indexes: []string{"outbox_ready", "outbox_waiting"}, always: true,
		},
		{
			name: "SettlePublished", sql: sqltext.SettlePublished, args: []any{ids, slices.Repeat([]string{"x"}, some), "", 0},
			indexes: []string{"outbox_pkey"},
		},
		{
			name: "SettlePublishedDelete", sql: sqltext.SettlePublishedDelete,
			args: []any{ids, slices.Repeat([]string{"x"}, some), "", 0}, indexes: []string{"outbox_pkey"},
		},
		{
			name: "SettleSpan", sql: sqltext.SettleSpan, args: []any{int64(1), int64(some), "", 0, ids[:2]},
			indexes: []string{"outbox_pkey"},
		},
		{
			name: "SettleSpanDelete", sql: sqltext.SettleSpanDelete, args: []any{int64(1), int64(some), "", 0, ids[:2]},
			indexes: []string{"outbox_pkey"},
		},
		{name: "SettleFailed", sql: sqltext.SettleFailed, indexes: []string{"outbox_pkey"},
			args: []any{
				"", owner, ids, errs, repeated(some, 1), repeated(some, 1), repeated(some, 1), delays, errs, delays,
			}},
		{
			name: "CleanPublished", sql: sqltext.CleanPublished,
			args: []any{int64(0), 3600.0, int64(1000), []string{}, int64(65536), ""}, indexes: []string{"outbox_pkey"},
		},
		{
			name: "OldDead", sql: sqltext.Outbox.OldDead, indexes: []string{"outbox_dead_topics"},
			args: []any{int64(1000), []string{}, "events", "-infinity", "", int64(1), 3600.0},
		},
	}
}

func repeated(n int, v int64) []int64 { return slices.Repeat([]int64{v}, n) }

// plan is a node of EXPLAIN (FORMAT JSON), with the pages that it visited if it was run.
type plan struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cond     string  `json:"Index Cond"`
	Hit      int64   `json:"Shared Hit Blocks"`
	Read     int64   `json:"Shared Read Blocks"`
	Rows     float64 `json:"Actual Rows"` // with decimals since PostgreSQL 18
	Plans    []plan
}

// planOf returns the root of a plan.
func planOf(t testing.TB, explained []byte) plan {
	t.Helper()
	var root []struct{ Plan plan }
	require.NoError(t, json.Unmarshal(explained, &root))
	return root[0].Plan
}

// scans returns the nodes that read the outbox, each with its index, and the number of sorts.
func (p plan) scans() (list []plan, sorts int) {
	switch {
	case p.Type == "Bitmap Index Scan" && p.Index != "outbox_lanes_pkey":
		list = append(list, p)
	case p.Relation == "outbox" && p.Type != "Bitmap Heap Scan" && p.Type != "ModifyTable":
		list = append(list, p)
	case p.Type == "Sort" || p.Type == "Incremental Sort":
		sorts++
	}
	for _, child := range p.Plans {
		more, n := child.scans()
		list, sorts = append(list, more...), sorts+n
	}
	return list, sorts
}

// checkReading checks the plans of the connection for reading, which are made once for all states of the table.
func checkReading(t *testing.T, q drive.Querier, state string) {
	for _, s := range plannedStatements() {
		if !s.reading {
			continue
		}
		name := "plan_" + strings.ReplaceAll(s.name, " ", "_")
		if strings.HasPrefix(state, "empty") {
			_, err := q.Exec(t.Context(), "PREPARE "+name+" AS "+sqltext.Tables{}.Render(s.sql))
			require.NoError(t, err, s.name)
		}
		var text []byte
		err := drive.Collect(t.Context(), q, func(rows drive.Rows) error { return rows.Scan(&text) },
			"EXPLAIN (FORMAT JSON) EXECUTE "+name+"("+literals(s.args)+")")
		require.NoError(t, err, s.name)
		checkPlan(t, s, text)
	}
}

// literals writes the arguments of a prepared statement as SQL.
func literals(args []any) string {
	list := make([]string, len(args))
	for i, a := range args {
		list[i] = literal(a)
	}
	return strings.Join(list, ", ")
}

// literal writes an argument as SQL.
func literal(arg any) string {
	switch a := arg.(type) {
	case []int64, []float64, []bool:
		return "'{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(a), " ", ","), "[]") + "}'"
	case []string:
		if a == nil {
			return "NULL"
		}
		if len(a) == 0 {
			return "'{}'"
		}
		return "'{\"" + strings.Join(a, `","`) + "\"}'"
	case [][]byte:
		return "'{" + string(bytes.Join(a, []byte(","))) + "}'"
	case []byte:
		return "'" + string(a) + "'"
	}
	return fmt.Sprintf("'%v'", arg)
}

func checkPlan(t *testing.T, s planned, text []byte) {
	scans, sorts := planOf(t, text).scans()
	require.NotEmpty(t, scans, s.name)
	for _, scan := range scans {
		assert.Contains(t, s.indexes, scan.Index, "%s has a %s", s.name, scan.Type)
	}
	if s.sorted {
		assert.Zero(t, sorts, "%s sorts", s.name)
	}
}

// TestPlans checks plans in databases of several sizes, with fresh statistics and with some from when the database
// looked very different. The long variant ends with a million messages.
func TestPlans(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	h := onPgx(t)
	const empty = "empty, never analyzed"
	h.exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)") // it would refresh stale statistics
	// saves a third of the time, and is irrelevant to the planner
	h.exec(t, "ALTER TABLE outbox SET UNLOGGED")
	reading, closeReading, err := (*core.DB)(h.db).ReaderConn(t.Context())
	require.NoError(t, err)
	defer closeReading()
	check := func(state string) {
		t.Run(state, func(t *testing.T) {
			checkReading(t, reading, state)
			for _, s := range plannedStatements() {
				if s.only || state == empty && !s.always {
					continue // scanning a few pages completely is equally good, and it is planned again each time
				}
				var text []byte
				require.NoError(t,
					h.pool.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) "+sqltext.Tables{}.Render(s.sql), s.args...).Scan(&text),
					s.name)
				checkPlan(t, s, text)
			}
		})
	}
	pending := func(n int) {
		h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload)
			SELECT i, 'events', 'key-' || i % 10000, convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, $1::int) i`, n)
	}
	publish := func() { // all but a few rows
		h.exec(t, "UPDATE outbox SET published_at = now() WHERE published_at IS NULL AND id % 1000 > 0")
	}
	analyze := func() { h.exec(t, "ANALYZE outbox") }

	few := rounds(50_000, 100_000)
	check(empty)
	pending(few)
	check(fmt.Sprint(few, " pending, never analyzed"))
	analyze()
	check(fmt.Sprint(few, " pending, fresh"))
	publish()
	check(fmt.Sprint(few, " published, statistics of pending ones"))
	analyze()
	check(fmt.Sprint(few, " published, fresh"))
	many := rounds(150_000, 1_000_000)
	pending(many - few)
	check(fmt.Sprint(many, " mostly pending, statistics of published ones"))
	analyze()
	check(fmt.Sprint(many, " mostly pending, fresh"))
	publish()
	check(fmt.Sprint(many, " published, statistics of pending ones"))
	analyze()
	check(fmt.Sprint(many, " published, fresh"))
	h.exec(t, "TRUNCATE outbox")
	h.exec(t, "VACUUM (ANALYZE) outbox")
	pending(few)
	check(fmt.Sprint(few, " pending, statistics of an empty table"))
}

// TestCleanUpOfReusedPages: new rows fill the pages of deleted ones, so a table is not in the order of time. If no old
// row is left, searching for one still reads few pages.
func TestCleanUpOfReusedPages(t *testing.T) {
	extended(t)
	h := onPgx(t)
	const rows, retention = 40_000, 24 * time.Hour
	for table, insert := range map[string]string{
		"inbox": `INSERT INTO inbox (consumer, message_id, processed_at) SELECT 'shop/orders', i, `,
		"outbox_idempotency": `INSERT INTO outbox_idempotency (tenant, method, route, key, fingerprint, expires_at) ` +
			`SELECT '', 'POST', '/', i, '', `,
	} {
		fill := func(first, last int, at string) {
			h.exec(t, insert+at+fmt.Sprintf(" FROM generate_series(%d, %d) i", first, last))
			h.exec(t, "VACUUM (ANALYZE) "+table)
		}
		fill(1, rows/2, "now() - interval '2 days'")
		fill(rows/2+1, rows, "now() + interval '1 day'")
		h.exec(t, "DELETE FROM "+table+" WHERE ctid IN (SELECT ctid FROM "+table+" ORDER BY ctid LIMIT $1)", rows/2)
		h.exec(t, "VACUUM "+table)
		fill(rows+1, rows*3/2, "now() + interval '1 day'")
	}
	h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts) SELECT 'shop/orders', 'failed ' || i, 1 `+
		`FROM generate_series(1, 20000) i`)
	h.exec(t, "VACUUM (ANALYZE) inbox")
	seconds, none, now := retention.Seconds(), "", time.Now().UTC().Format(time.RFC3339)
	for _, test := range []struct {
		name, sql string
		args      []any
	}{
		{"CleanInbox now", sqltext.CleanInbox, []any{seconds, int64(1000), none}},
		{"CleanInbox from", sqltext.CleanInbox, []any{seconds, int64(1000), now}},
		{"CleanInboxFailed", sqltext.CleanInboxFailed, []any{seconds, int64(1000), none}},
		{"CountOldInbox", sqltext.CountOldInbox, []any{seconds, int64(1000), now}},
		{"CleanKeys", sqltext.CleanKeys, []any{int64(1000), none}},
		{"CountExpiredKeys", sqltext.CountExpiredKeys, []any{int64(1000), now}},
	} {
		pages := genericPages(t, h, test.sql, test.args, false)
		assert.LessOrEqual(t, pages, int64(20), "pages read by %s", test.name)
		t.Logf("%s: %d pages", test.name, pages)
	}
}

// TestPlanOfABatchsClaim: it finds previously handled messages by the primary key, even before the first ANALYZE.
func TestPlanOfABatchsClaim(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, "ALTER TABLE inbox SET (autovacuum_enabled = off)")
	claim := "EXPLAIN " + sqltext.Tables{}.Render(sqltext.ClaimInboxes)
	for _, set := range []string{"SELECT", `INSERT INTO inbox (consumer, message_id, processed_at)
		SELECT 'shop/orders', i, now() FROM generate_series(1, 50000) i`, "ANALYZE inbox"} {
		h.exec(t, set)
		text := strings.Join(column[string](t, h, claim, "shop/orders", []string{"1", "x"}, [][]byte{{}, {}}), "\n")
		assert.Contains(t, text, "message_id = asked.id", "after %s", set)
		assert.NotRegexp(t, "(Seq|Bitmap Heap) Scan on inbox", text, "after %s", set)
	}
}

// TestFetchPrunes: a forwarder's reads and settlements visit no more pages of a partitioned outbox than of a plain one,
// although the ids were unknown when the statements were planned.
func TestFetchPrunes(t *testing.T) {
	extended(t)
	needsPlainOutbox(t) // the test itself compares both kinds
	parallel(t)
	const partitions, size, pending = 8, 4000, 2000
	const last = partitions * size
	const owner = "00000000-0000-0000-0000-000000000001"
	plain, cut := newPgxHandle(t, newMigratedDatabase(t)), newPgxHandle(t, newMigratedDatabase(t))
	ends := make([]int64, partitions)
	for i := range ends {
		ends[i] = int64(i+1)*size + 1
	}
	ends[partitions-1] = 1e9 // like the partition being written, including rows that a read skips
	intoPartitions(t, cut, append(ends, 2e9, 3e9, 4e9)...)
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
			return append(from(last), ids, true, none, []string{}, none, none, none, int64(0), []string{}, []string{})
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
			continue // with a generic plan, an UPDATE in Postgres 13 visits each partition: docs/run/partitions.md
		}
		assert.LessOrEqual(t, float64(pages["cut"]), 1.05*float64(pages["plain"])+1, test.name)
	}
}

// genericPages returns how many pages a statement visits with a generic plan when all of them are in memory. Its
// changes are rolled back.
func genericPages(t *testing.T, h handle, statement string, args []any, reading bool) int64 {
	t.Helper()
	var visited int64
	undo := fmt.Errorf("undo")
	run := func(q drive.Querier) {
		for _, s := range []string{
			"SET plan_cache_mode = force_generic_plan", "PREPARE prepared AS " + sqltext.Tables{}.Render(statement),
		} {
			_, err := q.Exec(t.Context(), s)
			require.NoError(t, err, s)
		}
		var text []byte
		for range 3 { // the first run reads catalogs
			require.NoError(t, drive.Collect(t.Context(), q, func(rows drive.Rows) error { return rows.Scan(&text) },
				"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE prepared("+literals(args)+")"))
			p := planOf(t, text)
			visited = p.Hit + p.Read
		}
		_, err := q.Exec(t.Context(), "DEALLOCATE prepared")
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
