package integration_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutboxctlRolls does what docs/run/partitions.md says, with the SQL and the command as they stand there.
func TestOutboxctlRolls(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	page, err := os.ReadFile("../docs/run/partitions.md")
	require.NoError(t, err)
	commands := regexp.MustCompile("```\noutboxctl (.*)\n```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, commands, 2)
	convert, command := commands[0], commands[1]

	h := newPgxHandle(t, newMigratedDatabase(t))
	r := ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Equal(t, 1, r.code, r)
	require.Contains(t, r.err, "the outbox is not partitioned: use Clean")

	r = ctl{t: t, url: h.url}.run(words(convert[1])...)
	require.Zero(t, r.code, r.err)
	r = ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "emptied 0 and dropped 0 leaves", "the first run makes the leaves ahead")
	h.writeRows(t, 50, `published_at = now() - interval '5 days'`)
	h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id = 7`)
	first := h.bounds(t)[0] // MINVALUE-8000000 or so
	h.exec(t, `SELECT setval('outbox_id_seq', `+first[len("MINVALUE-"):]+`::bigint + 1)`)
	r = ctl{t: t, url: h.url}.run("roll", "--retention", "4d", "--dry-run")
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `outbox_p0 +emptied +49 +1\b`, r.out)
	require.Regexp(t, `Roll would have made \d, emptied 1 and dropped 0 leaves; removed 49 messages with leaves, put back 1, `+
		`deleted 0\.`, r.out)
	r = ctl{t: t, url: h.url}.run("roll", "--retention", "4d")
	require.Equal(t, 2, r.code, "a script must confirm: %s", r.err)
	require.Equal(t, 50, h.count(t, `SELECT count(*) FROM outbox`))
	r = ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `Made \d, emptied 1 and dropped 0 leaves; removed 49 messages with leaves, put back 1`, r.out)
	require.Equal(t, []int64{7}, h.ids(t, "outbox"))
	require.Equal(t, 2, h.count(t, `SELECT count(*) FROM outbox_audit WHERE action = 'roll' AND actor = 'cron'`))
	r = ctl{t: t, url: h.url}.run("stats")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "Partitions of the outbox")
	require.Regexp(t, `outbox_p0 +retained +[\d,]+ +\d+ kB +\d+`, r.out)
	require.Regexp(t, `outbox_p1 +current +[\d,]+ +[\d,]+ +\d+ kB\n`, r.out)
	require.Regexp(t, `outbox_p2 +ahead `, r.out)
	require.Regexp(t, `outbox_default +empty +no leaf +\d+ kB`, r.out)

	// Nobody has run it for long, and now a transaction reads all leaves.
	h = newPgxHandle(t, newMigratedDatabase(t))
	intoLeaves(t, h, 100)
	h.writeRows(t, 150, "")
	end := h.open(t, `SELECT count(*) FROM outbox`)
	r = ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Equal(t, 1, r.code, "cron must say that no leaf was made")
	require.Contains(t, r.out, "Made 0, emptied 0")
	require.Contains(t, r.err, "no leaf is ahead of the ids: none was made: it is in use")
	require.Contains(t, r.err, "run outboxctl doctor, which says what to do")
	r = ctl{t: t, url: h.url}.run("roll", "--output", "json", "--yes")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.out, `"made": 0`)
	require.Zero(t, ctl{t: t, url: h.url}.run("roll", "--dry-run").code, "a preview changes nothing")
	end()
	r = ctl{t: t, url: h.url}.run(words(command[1])...)
	require.Zero(t, r.code, r.err)
}
