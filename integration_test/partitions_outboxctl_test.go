package integration_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutboxctlPartitions follows docs/run/partitions.md, with its commands as printed.
func TestOutboxctlPartitions(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	page, err := os.ReadFile("../docs/run/partitions.md")
	require.NoError(t, err)
	commands := regexp.MustCompile("(?m)^outboxctl (.*)$").FindAllStringSubmatch(string(page), -1)
	require.Len(t, commands, 2)
	create, command := words(commands[0][1]), words(commands[1][1])

	h := newPgxHandle(t, newMigratedDatabase(t))
	r := ctl{t: t, url: h.url}.run(command...)
	require.Equal(t, 1, r.code, r)
	require.Contains(t, r.err, "the outbox is not partitioned: use Clean")
	r = ctl{t: t, url: h.url}.run("partitions", "list")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "the outbox is one table")

	h = newPgxHandle(t, newDatabase(t))
	r = ctl{t: t, url: h.url}.run(create...)
	require.Zero(t, r.code, r.err)
	r = ctl{t: t, url: h.url}.run(command...)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "nothing to do")
	h.writeRows(t, 50, `published_at = now() - interval '5 days'`)
	h.exec(t, `SELECT setval('outbox_id_seq', 4000001)`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, dead_at) VALUES ('d', 't', '', now())`)
	h.exec(t, `SELECT setval('outbox_id_seq', 8000001)`)
	r = ctl{t: t, url: h.url}.run("partitions", "maintain", "--retention", "4d", "--dry-run")
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `outbox_p0 +would be dropped\b`, r.out)
	r = ctl{t: t, url: h.url}.run("partitions", "maintain", "--retention", "4d")
	require.Equal(t, 2, r.code, "a script must confirm: %s", r.err)
	require.Contains(t, r.err, "Make 2 and drop 1 partitions, with 50 messages?")
	require.Equal(t, 51, h.count(t, `SELECT count(*) FROM outbox`))
	r = ctl{t: t, url: h.url}.run(command...)
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `outbox_p0 +dropped\b`, r.out)
	require.Regexp(t, `outbox_p1 +kept +1 dead\b`, r.out)
	require.Equal(t, 1, h.count(t, `SELECT count(*) FROM outbox`))
	require.Equal(t, 2, h.count(t, `SELECT count(*) FROM outbox_audit WHERE action = 'partitions' AND actor = 'cron'`))
	for _, list := range [][]string{{"stats"}, {"partitions", "list"}} {
		r = ctl{t: t, url: h.url}.run(list...)
		require.Zero(t, r.code, r.err)
		require.Regexp(t, `outbox_p1 +held +[\d,]+ +[\d,]+ +\d+ kB +\S+ +1\b`, r.out)
		require.Regexp(t, `outbox_p2 +current +[\d,]+ +[\d,]+ +\d+ kB`, r.out)
		require.Regexp(t, `outbox_p3 +ahead `, r.out)
		require.Regexp(t, `outbox_default +empty +other ids +\d+ kB`, r.out)
	}

	// No maintenance for a long time, and now a transaction reads all partitions.
	h = newPgxHandle(t, newMigratedDatabase(t))
	intoPartitions(t, h, 100)
	h.writeRows(t, 150, "")
	end := h.open(t, `SELECT count(*) FROM outbox`)
	r = ctl{t: t, url: h.url}.run(append(command, "--output", "json")...)
	require.Equal(t, 1, r.code, "cron must say that no partition was made")
	require.Contains(t, r.out, `"made": []`)
	require.Contains(t, r.err, "no partition is ahead of the ids: in use: the next run tries again: run outboxctl doctor")
	end()
	r = ctl{t: t, url: h.url}.run(command...)
	require.Zero(t, r.code, r.err)
}
