package integration_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStatementsMeetEachMessageOnce: statements that are repeated until they change nothing process each message once,
// although the changed ones are published, die or fail again before the next run.
func TestStatementsMeetEachMessageOnce(t *testing.T) {
	h := onPgx(t)
	fill := func(becomes string) {
		h.exec(t, "TRUNCATE outbox, inbox, inbox_queue")
		h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload, created_at, attempts, last_error) SELECT i, i, 'bookings', '', now() - interval '20 min', 1, 'unknown topic'
			FROM generate_series(1, 1500) i`)
		h.exec(t, `INSERT INTO inbox_queue (id, source, message_id, topic, payload, state, first_seen_at, last_seen_at, due_at, expires_at, attempts, last_error)
			SELECT i, 'shop', i, 'letters', 'p', 'processing', now(), now(), now() + interval '1 hour', now() + interval '1 day', 1, 'no stamp' FROM generate_series(1, 1500) i`)
		h.exec(t, "UPDATE outbox SET "+strings.ReplaceAll(becomes, "clock_timestamp()", "now() - interval '10 min'")+
			" due_at = now() + interval '1 hour'")
	}
	becomes := map[string]string{
		"Requeue": "dead_at = clock_timestamp(),", "Replay": "published_at = clock_timestamp(),", "RetryNow": "",
	}
	fill(becomes["Requeue"])
	statements := []string{
		"-- Requeue: what Doctor says\n" + statementOf.FindStringSubmatch(": " + findings(t, h)["dead"].Cure)[1],
	}
	for _, statement := range pageStatements(t) {
		if regexp.MustCompile(`(?m)^UPDATE `).MatchString(statement) && strings.Contains(statement, "LIMIT 1000") {
			statements = append(statements, statement)
		}
	}
	require.Len(t, statements, 4)
	for _, statement := range statements {
		verb, _, _ := strings.Cut(strings.TrimPrefix(statement, "-- "), ":")
		table := regexp.MustCompile(`UPDATE (?:"?public"?\.)?"?(outbox|inbox_queue)\b`).FindStringSubmatch(statement)[1]
		fill(becomes[verb])
		met, next := map[int64]int{}, statement
		for range 4 {
			var changed, last int64
			rows, err := h.pool.Query(t.Context(), next)
			require.NoError(t, err, next)
			if rows.Next() {
				require.NoError(t, rows.Scan(&changed, &last))
			}
			rows.Close()
			require.NoError(t, rows.Err(), next)
			if !strings.Contains(statement, "id > 0") {
				changed = rows.CommandTag().RowsAffected()
			}
			if changed == 0 {
				break
			}
			next = strings.ReplaceAll(statement, "id > 0", fmt.Sprint("id > ", last))
			for _, id := range column[int64](t, h, "SELECT id FROM "+table+" WHERE due_at <= clock_timestamp()") {
				met[id]++
			}
			h.exec(t, "UPDATE "+table+" SET "+map[bool]string{true: becomes[verb]}[table == "outbox"]+
				" attempts = 2, due_at = clock_timestamp() + interval '1 hour' WHERE due_at <= clock_timestamp()")
		}
		assert.Len(t, met, 1500, statement)
		for id, n := range met {
			if n != 1 {
				t.Errorf("it changed message %d %d times: %s", id, n, statement)
				break
			}
		}
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
	assert.Contains(t, f.Cure, "restart them if the log does not say why not")
}
