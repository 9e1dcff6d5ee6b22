package integration_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// foundOfPartitions lists Doctor's findings about partitions.
func foundOfPartitions(t testing.TB, h handle) (list []string) {
	t.Helper()
	found := findings(t, h)
	for _, check := range []string{"partitions", "partitions_ahead", "partitions_due", "partitions_held",
		"partitions_many"} {
		if f, ok := found[check]; ok {
			list = append(list, f.Severity.String()+" "+check)
		}
	}
	return list
}

var sqlOf = regexp.MustCompile(`(SELECT setval.*\))$`)

// maintainAs runs the command of a finding.
func maintainAs(t testing.TB, h handle, f admin.Finding) {
	t.Helper()
	said := commandOf.FindStringSubmatch(f.Cure)
	require.Len(t, said, 2, f.Cure)
	r := ctl{t: t, url: h.url}.run(append(words(said[1]), "--yes")...)
	require.Zero(t, r.code, "%s: %s%s", said[1], r.out, r.err)
}

// TestDoctorOfPartitions: each problem of a partitioned outbox is found, and each printed cure works.
func TestDoctorOfPartitions(t *testing.T) {
	t.Parallel()
	maintained := func(t *testing.T) handle {
		h := newPartitioned(t, nine(100)...)
		h.writeRows(t, 50, "")
		require.Empty(t, did(h.maintain(t)))
		require.Empty(t, foundOfPartitions(t, h), "no findings")
		return h
	}
	find := func(t *testing.T, h handle, check string, s admin.Severity, evidence string) admin.Finding {
		t.Helper()
		f, ok := findings(t, h)[check]
		require.True(t, ok, "no finding %s", check)
		t.Log(f)
		require.Equal(t, s, f.Severity)
		require.Contains(t, f.Evidence, evidence)
		return f
	}

	t.Run("a plain outbox", func(t *testing.T) {
		needsPlainOutbox(t)
		t.Parallel()
		require.Empty(t, foundOfPartitions(t, newPgxHandle(t, newMigratedDatabase(t))))
	})
	t.Run("ahead", func(t *testing.T) {
		t.Parallel()
		h := maintained(t)
		h.exec(t, `SELECT setval('outbox_id_seq', 750)`)
		find(t, h, "partitions_ahead", admin.Warning, "1 partition is ahead of the last id, 750: after 150 more ids")
		h.exec(t, `SELECT setval('outbox_id_seq', 850)`)
		find(t, h, "partitions_ahead", admin.Critical, "no partition is ahead of the last id, 850: after 50 more ids")
		h.exec(t, `SELECT setval('outbox_id_seq', 950)`)
		h.writeRows(t, 3, "")
		maintainAs(t, h, find(t, h, "partitions_ahead", admin.Critical, "the default partition takes the messages"))
		cured(t, h, "partitions_ahead")
	})
	t.Run("set back", func(t *testing.T) {
		t.Parallel()
		h := maintained(t)
		h.exec(t, `SELECT setval('outbox_id_seq', 450)`)
		h.exec(t, `UPDATE outbox SET `+settledLongAgo)
		require.Len(t, h.maintain(t).Dropped, 4)
		h.exec(t, `SELECT setval('outbox_id_seq', 50)`)
		h.writeRows(t, 3, "")
		require.Equal(t, 3, h.count(t, `SELECT count(*) FROM outbox_default`))
		r := h.maintain(t)
		require.Zero(t, r.Ahead)
		require.Equal(t, "the next partition begins at id 400, far above the last id, 53", r.NotMade)
		f := find(t, h, "partitions_ahead", admin.Critical,
			"the next partition begins at id 400, far above the last id, 53: "+
				"the default partition takes the messages")
		execScript(t, h, sqlOf.FindStringSubmatch(f.Cure)[1])
		h.writeRows(t, 1, "")
		require.Equal(t, []int64{400}, h.ids(t, "outbox_p4"))
		cured(t, h, "partitions_ahead")
	})
	t.Run("in use", func(t *testing.T) {
		t.Parallel()
		h := maintained(t)
		h.writeRows(t, 300, settledLongAgo)
		end := h.open(t, `SELECT count(*) FROM outbox`)
		h.maintain(t)
		find(t, h, "partitions_due", admin.Warning,
			"; the last run found in use: outbox_default, outbox_p0, outbox_p1, outbox_p2")
		end()
		require.Len(t, h.maintain(t).Dropped, 3)
		cured(t, h, "partitions_due")
	})
	t.Run("due", func(t *testing.T) {
		t.Parallel()
		h := maintained(t)
		h.writeRows(t, 100, settledLongAgo)
		require.Empty(t, foundOfPartitions(t, h), "the next run drops it")
		h.exec(t, `UPDATE outbox_audit SET at = at - interval '3 hours', filter = jsonb_set(filter, '{before}',
			to_jsonb(to_char(at - interval '27 hours', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))`)
		f := find(t, h, "partitions_due", admin.Warning, "the partitions were last maintained 3h00m ago, and all "+
			"messages in 1 partition were settled more than 24h0m0s ago: outbox_p0")
		require.Contains(t, f.Cure, "outboxctl partitions maintain --retention 24h0m0s")
		h.exec(t, `INSERT INTO outbox_audit (actor, action, filter, ended_at, outcome) VALUES ('cron', 'partitions', '{}', now(),
			'no space left on device')`)
		find(t, h, "partitions_due", admin.Warning, "; the last run failed: no space left on device")
		maintainAs(t, h, f)
		cured(t, h, "partitions_due")
		require.Zero(t, h.count(t, `SELECT count(*) FROM pg_class WHERE relname = 'outbox_p0'`))
	})
	t.Run("held", func(t *testing.T) {
		t.Parallel()
		h := newPartitioned(t, nine(10)...)
		h.writeRows(t, 85, settledLongAgo)
		h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id % 10 = 5 OR id = 6`)
		h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = NULL WHERE id = 15`)
		h.maintain(t)
		find(t, h, "partitions_held", admin.Warning, "pending or dead messages keep 8 partitions from being dropped: "+
			"outbox_p0 has 2 dead, outbox_p1 has 1 pending, outbox_p2 has 1 dead, outbox_p3 has 1 dead, outbox_p4 has 1 "+
			"dead, 3 more")
		h.exec(t, `UPDATE outbox SET `+settledLongAgo+` WHERE id >= 20`)
		require.Len(t, h.maintain(t).Dropped, 6)
		f := find(t, h, "partitions_held", admin.Info, "outbox_p0 has 2 dead, outbox_p1 has 1 pending")
		require.Contains(t, f.Cure, "(outboxctl outbox list --state dead)")
		h.exec(t, `UPDATE outbox SET `+settledLongAgo)
		require.Len(t, h.maintain(t).Dropped, 2)
		cured(t, h, "partitions_held")
	})
	t.Run("many", func(t *testing.T) {
		t.Parallel()
		var ends []int64
		for i := range int64(40) {
			ends = append(ends, 10*(i+1))
		}
		h := newPartitioned(t, ends...)
		h.writeRows(t, 359, settledLongAgo)
		f := find(t, h, "partitions_many", admin.Warning, "has 40 partitions")
		require.Contains(t, f.Cure, "outboxctl partitions maintain --partition-size 50")
		maintainAs(t, h, f)
		require.Contains(t, h.bounds(t), "400-450")
		end := h.open(t, `INSERT INTO outbox (uuid, topic, payload) VALUES ('w', 't', 'p')`)
		require.Equal(t, int64(359), h.maintain(t).Removed)
		find(t, h, "partitions_many", admin.Warning, "gets slower; 36 of them are empty")
		end()
		h.maintain(t)
		cured(t, h, "partitions_many")
	})
}

// TestPartitionsAreReadThroughTheOutbox: a reader has no privileges on the partitions.
func TestPartitionsAreReadThroughTheOutbox(t *testing.T) {
	extended(t)
	t.Parallel()
	owner, as := newRoles(t)
	intoPartitions(t, owner, 100, 200, 300, 400, 500, 600)
	owner.exec(t, `GRANT SELECT (id, created_at, due_at, published_at, dead_at) ON outbox TO "`+role(owner)+`reader"`)
	owner.writeRows(t, 150, "")
	owner.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (5000, 'far', 't', 'p')`)
	reader := as("reader")
	list, err := newAdmin(t, reader).Partitions(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 7)
	require.Equal(t, "held", list[0].State)
	require.Equal(t, int64(99), list[0].Pending.N)
	require.Equal(t, "current", list[1].State)
	require.Equal(t, "filled", list[6].State)

	owner.exec(t, `REVOKE ALL ON SEQUENCE outbox_id_seq FROM PUBLIC, "`+role(owner)+`reader"`)
	list, err = newAdmin(t, reader).Partitions(t.Context())
	require.NoError(t, err)
	require.Equal(t, "unknown", list[1].State, "the last id is unknown")
	require.Equal(t, []string{"warning partitions_ahead"}, foundOfPartitions(t, reader))
	require.Contains(t, findings(t, reader)["partitions_ahead"].Evidence, "could not check")
}

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

	// No maintenance ran for a long time, and now a transaction reads all partitions.
	h = newPgxHandle(t, newMigratedDatabase(t))
	intoPartitions(t, h, 100)
	h.writeRows(t, 150, "")
	end := h.open(t, `SELECT count(*) FROM outbox`)
	r = ctl{t: t, url: h.url}.run(append(command, "--output", "json")...)
	require.Equal(t, 1, r.code, "cron must report that no partition was made")
	require.Contains(t, r.out, `"made": []`)
	require.Contains(t, r.err, "no partition is ahead of the ids: in use: the next run tries again: run outboxctl doctor")
	end()
	r = ctl{t: t, url: h.url}.run(command...)
	require.Zero(t, r.code, r.err)
}
