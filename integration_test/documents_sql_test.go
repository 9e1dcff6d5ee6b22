package integration_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// pageStatements returns the SQL statements of docs/run/sql.md and of the runbook, each with its comments.
func pageStatements(t testing.TB) (list []string) {
	t.Helper()
	page, err := os.ReadFile("../docs/run/sql.md")
	require.NoError(t, err)
	runbook, err := os.ReadFile("../docs/run/runbook.md")
	require.NoError(t, err)
	page = append(page, runbook...)
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for _, statement := range strings.Split(block[1], ";\n") {
			if strings.TrimSpace(statement) != "" {
				list = append(list, statement)
			}
		}
	}
	return list
}

// fillOperations writes messages that match the statements of the page, and others. All times are long ago except where
// a statement needs otherwise.
func fillOperations(t testing.TB, h handle) {
	t.Helper()
	for _, statement := range []string{
		"TRUNCATE outbox, inbox, inbox_queue, outbox_topics, outbox_audit",
		`INSERT INTO outbox (id, uuid, topic, key, payload, metadata, created_at, due_at, attempts, last_error, published_at, dead_at)
		SELECT id, uuid, topic, key, 'p', metadata::jsonb, now() - written, now() - due, attempts, error, now() - published, now() - dead FROM (VALUES
			(42, 'dead', 'bookings', '', '{"outbox_generation": "7"}', interval '20 min', interval '19 min', 10, 'unknown topic', NULL::interval, interval '15 min'),
			(43, 'failing', 'bookings', 'K', '{}', '20 min', '-1 hour', 1, 'away', NULL, NULL),
			(44, 'sent again before', 'bookings', '', '{"a": "b", "outbox_generation": "2"}', '20 min', '18 min', 1, 'away', '17 min', NULL),
			(45, 'old', 'bookings', '', '{}', '3 days', NULL, 0, NULL, '2 days', NULL),
			(46, 'dead of something else', 'bookings', '', '{"outbox_generation": "x"}', '20 min', '19 min', 10, 'too large', NULL, '15 min'),
			(47, 'discarded', 'bookings', '', '{}', '20 min', '19 min', 10, 'discarded by bob', '14 min', '14 min'),
			(48, 'elsewhere', 'letters', '', '{}', '20 min', '-1 hour', 1, 'away', NULL, NULL),
			(49, 'due already', 'bookings', 'L', '{}', '20 min', '10 min', 1, 'away', NULL, NULL),
			(50, 'ready', 'bookings', '', '{}', '20 min', NULL, 0, NULL, NULL, NULL))
			AS m(id, uuid, topic, key, metadata, written, due, attempts, error, published, dead)`,
		`INSERT INTO inbox (consumer, message_id, received_at, attempts, revived, last_error, dead_at, processed_at)
		SELECT consumer, id, now() - received, attempts, 1, error, now() - dead, now() - processed FROM (VALUES
			('booking/book', 'the UUID', interval '20 min', 10, 'no seat', interval '15 min', NULL::interval), ('booking/book', 'another', '20 min', 10, 'no seat', '15 min', NULL),
			('booking/book', 'failing', '3 days', 2, 'no seat', NULL, NULL), ('booking/book', 'old', '3 days', 0, NULL, NULL, '2 days'), ('booking/book', 'done', '20 min', 0, NULL, NULL, '20 min'))
			AS m(consumer, id, received, attempts, error, dead, processed)`,
		`INSERT INTO inbox_queue (id, source, message_id, topic, payload, state, first_seen_at, last_seen_at, due_at, expires_at, attempts, crashes, last_error, done_at)
		SELECT n, 'shop', id, topic, 'p', state, now() - interval '3 days', now() - interval '3 days', now() - due, now() + interval '1 day', attempts, attempts, error, now() - done FROM (VALUES
			(1, 'its id', 'letters', 'dead', interval '20 min', 10, 'no stamp', NULL::interval), (2, 'another', 'letters', 'dead', '20 min', 10, 'no stamp', NULL),
			(3, 'failing', 'letters', 'processing', '-1 hour', 1, 'no stamp', NULL), (4, 'due already', 'letters', 'processing', '20 min', 1, 'no stamp', NULL),
			(5, 'old', 'letters', 'done', NULL, 0, NULL, '2 days'), (6, 'delayed', 'letters', 'processing', '-1 hour', 0, NULL, NULL))
			AS m(n, id, topic, state, due, attempts, error, done)`,
		`INSERT INTO outbox_topics (topic, forwarder, paused_at, reason) VALUES ('bookings', ` +
			`'00000000-0000-0000-0000-000000000000', now() - interval '1 hour', 'bob')`,
	} {
		h.exec(t, statement)
	}
}

// allColumns returns all columns of the message tables, and the topics. Times within the last minute are shown as now,
// others as minutes ago.
func allColumns(t testing.TB, h handle) (rows []string) {
	t.Helper()
	for _, table := range []string{"outbox", "inbox", "inbox_queue", "outbox_topics"} {
		for _, row := range column[string](t, h, "SELECT (to_jsonb(t) - 'history')::text FROM "+table+" t") {
			values := map[string]any{}
			require.NoError(t, json.Unmarshal([]byte(row), &values))
			for name, value := range values {
				text, _ := value.(string)
				if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
					values[name] = "now"
					if ago := time.Since(at); ago.Abs() > 3*time.Minute {
						values[name] = ago.Round(5 * time.Minute).String()
					}
				}
			}
			said, err := json.Marshal(values)
			require.NoError(t, err)
			rows = append(rows, table+" "+string(said))
		}
	}
	slices.Sort(rows)
	return rows
}

// TestOperationsStatements: each changing statement of docs/run/sql.md has the same effect on every column as the act
// that it names.
func TestOperationsStatements(t *testing.T) {
	h := onPgx(t)
	a := newAdmin(t, h)
	act := func(do func(*admin.Admin, admin.Action) (admin.Result, error), f admin.Filter) func() error {
		return func() error {
			_, err := do(a, admin.Action{Filter: f, Reason: "a test"})
			return err
		}
	}
	requeue := func(a *admin.Admin, of admin.Action) (admin.Result, error) { return a.Requeue(t.Context(), of) }
	discard := func(a *admin.Admin, of admin.Action) (admin.Result, error) { return a.Discard(t.Context(), of) }
	topic, reason := "bookings", "they asked us to"
	acts := map[string]func() error{
		"Requeue: all messages of a topic that died of one cause": act(requeue, admin.Filter{
			Topic: "bookings", ErrorContains: "unknown topic",
		}),
		"Discard: one": act(discard, admin.Filter{IDs: []string{"42"}}),
		"Pause":        func() error { return a.Pause(t.Context(), topic, reason) },
		"Resume":       func() error { return a.Resume(t.Context(), topic, reason) },
		"Requeue: one of the inbox": act(requeue, admin.Filter{
			In: admin.Inbox, IDs: []string{"booking/book:the UUID"},
		}),
		"Requeue: a message of the queue": act(requeue, admin.Filter{
			In: admin.Queue, IDs: []string{"shop:its id"},
		}),
		"Discard: one of the inbox": act(discard, admin.Filter{
			In: admin.Inbox, IDs: []string{"booking/book:the UUID"},
		}),
		"Discard: a message of the queue": act(discard, admin.Filter{
			In: admin.Queue, IDs: []string{"shop:its id"},
		}),
	}
	seen := map[string]bool{}
	for _, statement := range pageStatements(t) {
		fillOperations(t, h)
		if !regexp.MustCompile(`(?m)^(INSERT|UPDATE|DELETE) `).MatchString(statement) {
			h.exec(t, statement)
			continue
		}
		title := strings.TrimPrefix(strings.SplitN(statement, "\n", 2)[0], "-- ")
		name := ""
		for known := range acts {
			if strings.HasPrefix(title, known) && len(known) > len(name) {
				name = known
			}
		}
		if strings.Contains(statement, "outbox_audit") {
			name = "audit"
			assert.EqualValues(t, 1, h.exec(t, statement))
			const entry = "SELECT concat_ws('|', actor, action, reason, filter, touched, ended_at IS NOT NULL) " +
				"FROM outbox_audit ORDER BY id DESC LIMIT 1"
			byHand := value[string](t, h, entry)
			_, err := a.Requeue(t.Context(), admin.Action{
				Filter: admin.Filter{IDs: []string{"42"}}, Reason: "the topic exists now",
			})
			require.NoError(t, err)
			assert.Equal(t, value[string](t, h, entry), byHand)
		}
		require.NotEmpty(t, name, "nothing to compare with: %s", statement)
		seen[name] = true
		if name == "audit" {
			continue
		}
		initial := allColumns(t, h)
		require.NotZero(t, h.exec(t, statement), statement)
		byHand := allColumns(t, h)
		require.NotEqual(t, initial, byHand, statement)
		fillOperations(t, h)
		require.NoError(t, acts[name](), name)
		assert.Equal(t, allColumns(t, h), byHand, statement)
	}
	delete(seen, "audit")
	assert.Equal(t, slices.Sorted(maps.Keys(acts)), slices.Sorted(maps.Keys(seen)))
}

// TestDoctorsStatements: the statement that Doctor prints has the same effect on every column as the act.
func TestDoctorsStatements(t *testing.T) {
	h := onPgx(t)
	fill := func() {
		fillOperations(t, h)
		h.exec(t, "TRUNCATE inbox, inbox_queue, outbox_topics")
		h.exec(t, "UPDATE outbox SET attempts = 3 WHERE id = 43")
	}
	fill()
	s := statementOf.FindStringSubmatch(": " + findings(t, h)["failing"].Cure)
	require.Len(t, s, 2)
	h.exec(t, s[1])
	byHand := allColumns(t, h)
	fill()
	_, err := newAdmin(t, h).Discard(t.Context(), admin.Action{
		Filter: admin.Filter{IDs: []string{"43"}, States: []admin.State{admin.Failing}}, Reason: "hand",
	})
	require.NoError(t, err)
	want := allColumns(t, h)
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "discarded by alice: hand", "discarded by hand")
	}
	assert.Equal(t, want, byHand, s[1])
}

// TestOperationsQueries: readers may run the page's queries, and each uses an index.
func TestOperationsQueries(t *testing.T) {
	t.Parallel()
	owner, as := newRoles(t)
	reader := as("reader")
	for _, statement := range pageStatements(t) {
		if regexp.MustCompile(`(?m)^(INSERT|UPDATE|DELETE) `).MatchString(statement) ||
			strings.Contains(statement, "pg_stat") {
			continue
		}
		reader.exec(t, statement)
		var text []byte
		require.NoError(t, pgx.BeginFunc(t.Context(), owner.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), sqltext.WalkIndexes); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) "+statement).Scan(&text)
		}))
		for _, table := range planOf(t, text).wholeTables(false) {
			assert.NotContains(t, []string{"outbox", "inbox", "inbox_queue"}, table, "it reads all of it: %s", statement)
		}
	}
}

// TestStatementsMeetEachMessageOnce: a statement that is repeated until it changes nothing processes each message once,
// although the changed ones die again before the next run.
func TestStatementsMeetEachMessageOnce(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload, created_at, due_at, attempts, last_error, dead_at)
		SELECT i, i, 'bookings', '', now() - interval '20 min', now() + interval '1 hour', 1, 'unknown topic',
			now() - interval '10 min'
		FROM generate_series(1, 1500) i`)
	repeated := slices.DeleteFunc(pageStatements(t), func(s string) bool {
		return !regexp.MustCompile(`(?m)^UPDATE `).MatchString(s) || !strings.Contains(s, "LIMIT 1000")
	})
	require.Len(t, repeated, 1)
	met, next := map[int64]int{}, repeated[0]
	for range 4 {
		var changed, last int64
		rows, err := h.pool.Query(t.Context(), next)
		require.NoError(t, err, next)
		if rows.Next() {
			require.NoError(t, rows.Scan(&changed, &last))
		}
		rows.Close()
		require.NoError(t, rows.Err(), next)
		if changed == 0 {
			break
		}
		next = strings.ReplaceAll(repeated[0], "id > 0", fmt.Sprint("id > ", last))
		for _, id := range column[int64](t, h, "SELECT id FROM outbox WHERE due_at <= clock_timestamp()") {
			met[id]++
		}
		h.exec(t, "UPDATE outbox SET dead_at = clock_timestamp(), attempts = 2, "+
			"due_at = clock_timestamp() + interval '1 hour' WHERE due_at <= clock_timestamp()")
	}
	assert.Len(t, met, 1500)
	for id, n := range met {
		require.Equal(t, 1, n, "changes of message %d", id)
	}
}

// TestDoctorsRetryNowIsOfItsCause: failures with the same text in several topics are one finding, and its command
// leaves messages alone that fail with another text.
func TestDoctorsRetryNowIsOfItsCause(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at, attempts, last_error) SELECT topic, topic, '', `+
		`now() + interval '1 hour', 5, CASE topic WHEN 'c' THEN 'refused' ELSE 'away' END `+
		`FROM unnest(ARRAY['a', 'b', 'c']) topic`)
	f := findings(t, h)["failing"]
	require.Contains(t, f.Evidence, `2 messages of topics "a", "b" keep failing`)
	order(t, h, f, "outbox retry-now", "--yes")
	assert.Equal(t, []string{"a", "b"},
		column[string](t, h, "SELECT topic FROM outbox WHERE due_at <= now() ORDER BY topic"))
}

// TestDoctorOfUnreadLanes: messages wait in lanes that no forwarder owns, although one is alive.
func TestDoctorOfUnreadLanes(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox_forwarders (id, scope, topics, name, expires_at) `+
		`VALUES ('00000000-0000-0000-0000-000000000001', 'mine', '{}', 'half', now() + interval '1 hour')`)
	h.exec(t, `INSERT INTO outbox_lanes (scope, lane, epoch, owner) SELECT 'mine', l, 0, CASE `+
		`WHEN l < 32 THEN '00000000-0000-0000-0000-000000000001'::uuid END FROM generate_series(0, 63) l`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, created_at) SELECT i, 'orders', i, '', now() - interval `+
		`'5 min' FROM generate_series(1, 64) i`)
	f := findings(t, h)["backlog"]
	assert.Contains(t, f.Evidence, "no forwarder reads 32 of the 64 lanes of scope mine")
	assert.Contains(t, f.Cure, "restart them if the log does not show why they do not")
}
