package integration_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOperationsStatements runs the statements of docs/operations.md on messages for which they are meant: each finds its own.
func TestOperationsStatements(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	h := newPgxHandle(t, newMigratedDatabase(t))
	changes := 0
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for _, statement := range strings.Split(block[1], ";\n") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			h.exec(t, "DELETE FROM outbox")
			h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload, created_at, due_at, attempts, last_error, published_at, dead_at) VALUES
				(42, 'dead', 'bookings', '', now(), now(), 10, 'unknown topic', NULL, now()), (43, 'failing', 'bookings', '', now(), now() + interval '1 hour', 1, 'away', NULL, NULL),
				(44, 'done', 'bookings', '', now(), NULL, 0, NULL, now(), NULL), (45, 'old', 'bookings', '', now() - interval '2 days', NULL, 0, NULL, now() - interval '2 days', NULL)`)
			h.exec(t, "DELETE FROM inbox")
			h.exec(t, "INSERT INTO inbox (consumer, message_id, attempts, dead_at) VALUES ('booking/book', 'the UUID', 10, now())")
			h.exec(t, "DELETE FROM inbox_queue")
			h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, payload, state, due_at, attempts, done_at) VALUES ('shop', 'its id', 'letters', '', 'dead', NULL, 10, NULL),
				('shop', 'failing', 'letters', '', 'processing', now() + interval '1 hour', 1, NULL), ('shop', 'old', 'letters', '', 'done', NULL, 0, now() - interval '2 days')`)
			n := h.exec(t, statement)
			if verb := regexp.MustCompile(`(?m)^(INSERT|UPDATE|DELETE) `).FindString(statement); verb != "" {
				assert.EqualValues(t, 1, n, statement)
				changes++
			}
		}
	}
	require.GreaterOrEqual(t, changes, 14)
}
