package integration_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutboxctlRolls does what docs/run/partitions.md says, with the SQL and the command as they stand there.
func TestOutboxctlRolls(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/run/partitions.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 2)
	command := regexp.MustCompile("```\noutboxctl (.*)\n```").FindStringSubmatch(string(page))
	require.Len(t, command, 2)

	h := newPgxHandle(t, newMigratedDatabase(t))
	r := ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Equal(t, 1, r.code, r)
	require.Contains(t, r.err, "the outbox is not partitioned: use Clean")

	execScript(t, h, blocks[0][1])
	r = ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Contains(t, r.out, "Made 3, emptied 0 and dropped 0 leaves", "the first run makes the leaves ahead")
	h.writeRows(t, 50, `published_at = now() - interval '5 days'`)
	h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id = 7`)
	h.exec(t, `SELECT setval('outbox_id_seq', 4000001)`)
	r = ctl{t: t, url: h.url}.run("roll", "--retention", "4d", "--dry-run")
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `outbox_p0 +emptied +49 +1\b`, r.out)
	require.Contains(t, r.out, "Roll would have made 2, emptied 1 and dropped 0 leaves; removed 49 messages with leaves, "+
		"put back 1, deleted 0.")
	r = ctl{t: t, url: h.url}.run("roll", "--retention", "4d")
	require.Equal(t, 2, r.code, "a script must confirm: %s", r.err)
	require.Equal(t, 50, h.count(t, `SELECT count(*) FROM outbox`))
	r = ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "Made 2, emptied 1 and dropped 0 leaves; removed 49 messages with leaves, put back 1")
	require.Equal(t, []int64{7}, h.ids(t, "outbox"))
	require.Equal(t, 2, h.count(t, `SELECT count(*) FROM outbox_audit WHERE action = 'roll' AND actor = 'cron'`))

	// Nobody has run it for long.
	h = newPgxHandle(t, newMigratedDatabase(t))
	intoLeaves(t, h, 100)
	h.writeRows(t, 10_200, "")
	r = ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "more than 10000 rows")
	execScript(t, h, blocks[1][1])
	h.publish(t, "t", "k", "next")
	require.Equal(t, []int64{5000001}, h.ids(t, "outbox_p100"))
}
