package integration_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// notHere lists commands of the documents that need a broker or partitions, or run until stopped, with the tests that
// run them.
var notHere = map[string]string{
	"forward": "TestOutboxctlForwards", "serve": "TestOutboxctlServes", "reconcile": "TestOutboxctlReconciles",
	"completion": "TestDocument", "partitions": "TestOutboxctlPartitions", "redrive": "TestRedriveOfATopic",
}

// TestDocumentsCommandsAct runs the documented outboxctl commands on messages for which they are meant: none fails, and
// each act finds its messages. The text in docs/reference/outboxctl.md is each command's help.
func TestDocumentsCommandsAct(t *testing.T) {
	h := onPgx(t)
	newOldForwarder(t, moveTables[0], h.url)
	h.exec(t, `CREATE TABLE my_outbox (id bigserial PRIMARY KEY, event_id uuid DEFAULT gen_random_uuid(), aggregate_id int, topic text, body jsonb, headers jsonb,
		run_at timestamptz, sent_at timestamptz)`)
	h.exec(t, `INSERT INTO my_outbox (aggregate_id, topic, body, headers) VALUES (1, 'orders', '{}', '{}')`)
	prepare := func() (group string) {
		h.exec(t, "DELETE FROM outbox")
		h.exec(t, `INSERT INTO outbox (id, uuid, topic, key, payload, created_at, due_at, attempts, last_error, published_at, dead_at) VALUES
			(42, 'dead', 'bookings', '', '', now(), now(), 10, 'unknown topic', NULL, now()), (43, 'failing', 'bookings', 'order/7', '', now(), now() + interval '1 hour', 1, 'away', NULL, NULL),
			(44, 'done', 'bookings', '', '', now(), NULL, 0, NULL, now(), NULL)`)
		h.exec(t, "DELETE FROM inbox")
		h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts, last_error, dead_at)
			VALUES ('booking/book', 'UUID', 10, 'unknown topic', now())`)
		h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload, published_at, metadata) VALUES (45, 'letter', 'dead_letters', '', now(),
			'{"uuid_poisoned": "UUID", "topic_poisoned": "orders", "consumer_poisoned": "booking/book", "inbox_key_poisoned": "UUID"}')`)
		groups, err := newAdmin(t, h).ErrorGroups(t.Context(), admin.Filter{States: []admin.State{admin.Dead}})
		require.NoError(t, err)
		return groups[0].ID
	}
	tests := everyTest(t)
	ran, seen := 0, map[string]bool{}
	pages := documents(t)
	for page, content := range pages {
		content, _, _ = strings.Cut(content, "\n## outboxctl")
		for _, found := range regexp.MustCompile("(?m)(?:^|`|: )(?:OUTBOX_\\w+=\\S+ )*outboxctl ([a-z][^`\n]*)").
			FindAllStringSubmatch(content, -1) {
			line, _, _ := strings.Cut(found[1], " #")
			line, _, _ = strings.Cut(line+" ", " | ") // a pipe, or the end of a cell
			line = strings.TrimSpace(strings.Replace(line, "--reason ...", "--reason 'a try'", 1))
			args := words(line)
			if by := notHere[args[0]]; by != "" {
				assert.True(t, tests[by], "%s names the test %s, which does not exist", args[0], by)
				continue
			}
			if args[len(args)-1] == "..." || len(args) == 1 && (args[0] == "import" || args[0] == "export") {
				continue // names a group of commands
			}
			if slices.Contains(args, "--partition-size") { // these tables do not exist here: TestOutboxctlPartitions
				continue
			}
			if seen[line] { // also on another page
				continue
			}
			seen[line] = true
			group := prepare()
			if strings.Contains(line, "--state discarded") {
				h.exec(t, "UPDATE outbox SET published_at = now() WHERE id = 42")
			}
			for i, arg := range args {
				switch {
				case arg == "--watch":
					args[i] = "--exact"
				case args[0] == "find" && i == 1:
					args[i] = "dead"
				case arg == "ID":
					args[i] = "44"
				case i > 0 && args[i-1] == "--group":
					args[i] = group
				case i > 0 && args[i-1] == "--dir":
					args[i] = t.TempDir()
				}
			}
			act :=
				regexp.MustCompile(`^(outbox|keys|inbox|queue|topics) (requeue|redrive|replay|retry-now|discard|skip|pause|resume)`).
					MatchString(line)
			if act && !strings.Contains(line, "--dry-run") {
				args = append(args, "--yes")
			}
			r := ctl{t: t, url: h.url}.run(args...)
			if ran++; args[0] == "check" {
				require.Less(t, r.code, 3, "%s: %s: %s%s", page, line, r.out, r.err)
				continue
			}
			require.Zero(t, r.code, "%s: %s: %s%s", page, line, r.out, r.err)
			assert.NotContains(t, r.out, "Nothing to do", "%s: %s", page, line)
			if act { // nothing to import
				assert.NotRegexp(t, `\b0 messages\b`, r.out, "%s: %s", page, line)
			}
		}
	}
	require.Greater(t, ran, 20)
}
