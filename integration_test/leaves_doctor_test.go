package integration_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

// leafFindings are those of leaves.
var leafFindings = []string{"leaves", "leaves_ahead", "leaves_dead", "leaves_default", "leaves_many",
	"leaves_published", "roll", "roll_owner"}

// foundOfLeaves lists what Doctor says of the leaves.
func foundOfLeaves(t testing.TB, h handle) (list []string) {
	t.Helper()
	found := findings(t, h)
	for _, check := range leafFindings {
		if f, ok := found[check]; ok {
			list = append(list, f.Severity.String()+" "+check)
		}
	}
	return list
}

// rollAs gives the command that a finding names.
func rollAs(t testing.TB, h handle, f admin.Finding) {
	t.Helper()
	said := commandOf.FindStringSubmatch(f.Cure)
	require.Len(t, said, 2, f.Cure)
	r := ctl{t: t, url: h.url}.run(append(words(said[1]), "--yes")...)
	require.Zero(t, r.code, "%s: %s%s", said[1], r.out, r.err)
}

// TestDoctorOfLeaves sees what goes wrong with an outbox in partitions, and that each printed cure cures.
func TestDoctorOfLeaves(t *testing.T) {
	t.Parallel()
	// rolled has seven leaves of 100 ids, four of them ahead, and was rolled a moment ago.
	rolled := func(t *testing.T) handle {
		h := newLeaves(t, 100, 200, 300, 400, 500, 600, 700)
		h.writeRows(t, 250, "")
		require.Empty(t, did(h.roll(t)))
		require.Empty(t, foundOfLeaves(t, h), "nothing is wrong with it")
		return h
	}
	cures := func(t *testing.T, h handle, f admin.Finding) {
		t.Helper()
		if commandOf.MatchString(f.Cure) {
			rollAs(t, h, f)
		} else {
			cure(t, h, f)
		}
		cured(t, h, f.Check)
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
		require.Empty(t, foundOfLeaves(t, newPgxHandle(t, newMigratedDatabase(t))))
	})
	t.Run("one leaf ahead", func(t *testing.T) {
		t.Parallel()
		h := rolled(t)
		h.exec(t, `SELECT setval('outbox_id_seq', 550)`)
		f := find(t, h, "leaves_ahead", admin.Warning, "1 leaf is ahead of the last id, 550: 150 ids are left")
		require.Equal(t, []string{"warning leaves_ahead"}, foundOfLeaves(t, h), "it was rolled a moment ago")
		cures(t, h, f)
	})
	t.Run("no leaf ahead", func(t *testing.T) {
		extended(t)
		t.Parallel()
		h := rolled(t)
		h.exec(t, `SELECT setval('outbox_id_seq', 650)`)
		find(t, h, "leaves_ahead", admin.Critical, "no leaf is ahead of the last id, 650: 50 ids are left")
		h.exec(t, `SELECT setval('outbox_id_seq', 750)`)
		f := find(t, h, "leaves_ahead", admin.Critical, "the default partition takes the messages")
		cures(t, h, f)
	})
	t.Run("some messages in the default", func(t *testing.T) {
		t.Parallel()
		h := rolled(t)
		h.exec(t, `SELECT setval('outbox_id_seq', 750)`)
		h.writeRows(t, 3, "")
		find(t, h, "leaves_default", admin.Info, "public.outbox_default has 3 messages that had no leaf")
		h.exec(t, `UPDATE outbox SET `+settledLongAgo+` WHERE id > 750`)
		cures(t, h, findings(t, h)["leaves_default"])
	})
	t.Run("many messages in the default", func(t *testing.T) {
		extended(t)
		t.Parallel()
		h := rolled(t)
		h.exec(t, `SELECT setval('outbox_id_seq', 750)`)
		h.writeRows(t, 10_200, "")
		ahead := find(t, h, "leaves_ahead", admin.Critical, "the default partition takes the messages")
		f := find(t, h, "leaves_default", admin.Warning, "has 10000 or more messages that had no leaf")
		require.Equal(t, f.Cure, ahead.Cure)
		rollAs(t, h, f)
		require.Equal(t, []string{"info leaves_default"}, foundOfLeaves(t, h))
	})
	t.Run("nobody rolls", func(t *testing.T) {
		extended(t)
		t.Parallel()
		h := newLeaves(t, 100, 200, 300, 400, 500)
		h.writeRows(t, 150, "")
		f := find(t, h, "roll", admin.Warning, "the audit log has no roll of the outbox, and the leaves have room for 350 "+
			"more ids: a roll makes it at least 400")
		cures(t, h, f)
		h.exec(t, `UPDATE outbox SET `+settledLongAgo)
		h.exec(t, `UPDATE outbox_audit SET at = at - interval '3 hours'`)
		require.Empty(t, foundOfLeaves(t, h), "its retention is not known, and the usual one is 7 days")
		h.roll(t)
		h.writeRows(t, 100, "")
		h.exec(t, `UPDATE outbox SET `+settledLongAgo)
		h.roll(t, func(c *admin.RollConfig) { c.Retention = 0 })
		h.exec(t, `UPDATE outbox_audit SET at = at - interval '3 hours', filter = CASE WHEN filter ? 'before' THEN
			jsonb_set(filter, '{before}', to_jsonb(to_char(at - interval '27 hours', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')))
			ELSE filter END`)
		require.Equal(t, []string{"warning roll"}, foundOfLeaves(t, h))
		f = find(t, h, "roll", admin.Warning, "the outbox was rolled last 3h00m")
		require.Contains(t, f.Evidence, "a leaf has only messages that were settled more than 24h0m0s ago")
		require.Contains(t, f.Cure, "outboxctl roll --retention 24h0m0s")
		cures(t, h, f)
		require.Equal(t, 0, h.count(t, `SELECT count(*) FROM outbox_p1`))
	})
	t.Run("many small leaves ahead, and one large", func(t *testing.T) {
		extended(t)
		t.Parallel()
		h := newLeaves(t, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200)
		h.writeRows(t, 5, "")
		f := find(t, h, "roll", admin.Warning, "and the leaves have room for 195 more ids: a roll makes it at least 400")
		cures(t, h, f)
		require.Equal(t, "400-500", h.bounds(t)[13])
	})
	t.Run("rolls that fail", func(t *testing.T) {
		t.Parallel()
		h := rolled(t)
		h.exec(t, `SELECT setval('outbox_id_seq', 350)`)
		h.exec(t, `UPDATE outbox_audit SET at = at - interval '5 hours'`)
		h.exec(t, `INSERT INTO outbox_audit (actor, action, filter, ended_at, outcome) VALUES ('cron', 'roll', '{}', now(),
			'no space left on device')`)
		cures(t, h, find(t, h, "roll", admin.Warning, "the last try failed: no space left on device"))
	})
	t.Run("a role that lost the table", func(t *testing.T) {
		t.Parallel()
		h := rolled(t)
		role, other := "roller_"+h.dbName(t), "other_"+h.dbName(t)
		h.exec(t, `CREATE ROLE `+role)
		h.exec(t, `CREATE ROLE `+other)
		t.Cleanup(func() {
			for _, s := range []string{`REASSIGN OWNED BY ` + other + ` TO CURRENT_USER`, `DROP ROLE ` + role, `DROP ROLE ` + other} {
				_, err := h.pool.Exec(context.Background(), s)
				assert.NoError(t, err)
			}
		})
		h.exec(t, `UPDATE outbox_audit SET role = '`+role+`'`)
		f := find(t, h, "roll_owner", admin.Warning, `role "`+role+`", which rolled the outbox last, does not own table "outbox"`)
		cures(t, h, f)
		h.exec(t, `ALTER TABLE outbox_p1 OWNER TO `+other)
		f = find(t, h, "roll_owner", admin.Warning, `partition outbox_p1 does not belong to the owner of the outbox`)
		cures(t, h, f)
	})
	t.Run("dead messages in old leaves", func(t *testing.T) {
		t.Parallel()
		var ends []int64
		for i := range int64(15) {
			ends = append(ends, 10*(i+1))
		}
		h := newLeaves(t, ends...)
		h.writeRows(t, 105, settledLongAgo)
		h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id % 10 = 5 AND id < 100 OR id = 6`)
		require.Empty(t, findings(t, h)["leaves_dead"], "nothing was emptied so far")
		h.roll(t)
		f := find(t, h, "leaves_dead", admin.Warning, "dead messages keep 8 leaves from being dropped: "+
			"public.outbox_p0 has 2, public.outbox_p1 has 1")
		require.Contains(t, f.Evidence, "public.outbox_p4 has 1, 3 more leaves have some")
		require.Contains(t, f.Cure, "(outboxctl messages list --state dead)")
		discarded := `UPDATE outbox SET published_at = now() - interval '2 days' WHERE id `
		h.exec(t, discarded+`>= 20`)
		find(t, h, "leaves_dead", admin.Info, "dead messages keep 2 leaves from being dropped: public.outbox_p0 has 2, "+
			"public.outbox_p1 has 1")
		h.exec(t, discarded+`>= 1`)
		require.Empty(t, findings(t, h)["leaves_dead"])
		require.Subset(t, did(h.roll(t)), []string{"dropped outbox_p0", "dropped outbox_p1", "dropped outbox_p7"})
	})
	t.Run("publications", func(t *testing.T) {
		t.Parallel()
		h := rolled(t)
		for _, c := range []struct{ create, evidence, cure string }{
			{`FOR TABLE outbox WITH (publish_via_partition_root)`, `"p" sends the outbox as one table`, `DROP TABLE outbox`},
			{`FOR TABLE outbox`, `"p" sends the leaves of the outbox`, `DROP TABLE outbox`},
			{`FOR TABLE outbox_p0, outbox_p1, inbox`, `"p" sends the leaves`, `DROP TABLE outbox_p0, outbox_p1`},
			{`FOR ALL TABLES`, `"p" sends the leaves`, `make it again with a list of tables`},
		} {
			h.exec(t, `CREATE PUBLICATION p `+c.create)
			f := find(t, h, "leaves_published", admin.Warning, c.evidence)
			require.Contains(t, f.Cure, c.cure)
			if strings.Contains(c.cure, "DROP TABLE") {
				cures(t, h, f)
			}
			h.exec(t, `DROP PUBLICATION p`)
		}
		h.exec(t, `CREATE PUBLICATION p FOR TABLE inbox`)
		require.Empty(t, foundOfLeaves(t, h))
	})
	t.Run("too many leaves", func(t *testing.T) {
		t.Parallel()
		var ends []int64
		for i := range int64(40) {
			ends = append(ends, 10*(i+1))
		}
		h := newLeaves(t, ends...)
		h.writeRows(t, 359, settledLongAgo)
		h.exec(t, `INSERT INTO outbox_audit (actor, action, filter, ended_at) SELECT 'cron', 'roll', jsonb_build_object('before',
			to_char((now() - interval '25 hours') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')), now()`)
		f := find(t, h, "leaves_many", admin.Warning, "has 40 leaves")
		require.Contains(t, f.Cure, "outboxctl roll --partition-size 50 --retention 25h0m0s")
		cures(t, h, f)
		require.Contains(t, h.bounds(t), "400-450")
	})
}

// TestDoctorReadsLeavesThroughTheOutbox: a reader has no privileges on the leaves.
func TestDoctorReadsLeavesThroughTheOutbox(t *testing.T) {
	extended(t)
	t.Parallel()
	owner, as := newRoles(t)
	intoLeaves(t, owner, 100, 200, 300, 400, 500, 600)
	owner.exec(t, `GRANT SELECT (id, created_at, published_at, dead_at) ON outbox TO "`+role(owner)+`reader"`)
	owner.writeRows(t, 150, "")
	owner.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (5000, 'far', 't', 'p')`)
	owner.roll(t)
	reader := as("reader")
	list, err := newAdmin(t, reader).Leaves(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 7)
	require.Equal(t, admin.LeafCurrent, list[1].State)
	require.Equal(t, admin.LeafFilled, list[6].State)
	require.Equal(t, []string{"info leaves_default"}, foundOfLeaves(t, reader))

	revoke := func(what string) {
		owner.exec(t, `REVOKE ALL ON `+what+` FROM PUBLIC, "`+role(owner)+`reader"`)
	}
	revoke("SEQUENCE outbox_id_seq")
	list, err = newAdmin(t, reader).Leaves(t.Context())
	require.NoError(t, err)
	require.Equal(t, admin.LeafUnknown, list[1].State, "which id is the last is not known")
	require.ElementsMatch(t, []string{"info leaves_default", "warning leaves_ahead"}, foundOfLeaves(t, reader))
	require.Contains(t, findings(t, reader)["leaves_ahead"].Evidence, "could not be checked")
}

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

// TestUnloggedLeaf: a crash of the server empties what is unlogged. Check and Doctor find each table where that is a
// loss, and after the printed cures a crash takes nothing.
func TestUnloggedLeaf(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	intoLeaves(t, h, 10, 20, 30, 40, 50)
	h.exec(t, `ALTER TABLE outbox_default SET (autovacuum_vacuum_scale_factor = 0)`)
	execScript(t, h, `CREATE TABLE outbox_split PARTITION OF outbox FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
		CREATE TABLE "half-way" PARTITION OF outbox_split FOR VALUES FROM (100) TO (150);
		CREATE TABLE rest PARTITION OF outbox_split FOR VALUES FROM (150) TO (200)`)
	clean, err := schema.Inspect(t.Context(), h.db)
	require.NoError(t, err)
	require.Empty(t, clean)
	type damage struct{ sql, object, cure string }
	list := []damage{
		{`ALTER TABLE outbox_p1 SET UNLOGGED`, `table public.outbox_p1`, `ALTER TABLE public.outbox_p1 SET LOGGED`},
		{`ALTER TABLE outbox_default SET UNLOGGED`, `table public.outbox_default`, ``},
		{`CREATE UNLOGGED TABLE "Other" (LIKE outbox INCLUDING ALL) WITH (autovacuum_vacuum_scale_factor = 0);
			ALTER TABLE outbox ATTACH PARTITION "Other" FOR VALUES FROM (500) TO (600)`, `table public."Other"`, ``},
		{`ALTER TABLE "half-way" SET UNLOGGED; ALTER TABLE rest SET UNLOGGED`, `table public.outbox_split`,
			`ALTER TABLE public."half-way" SET LOGGED; ALTER TABLE public.rest SET LOGGED`},
		{`ALTER TABLE inbox SET UNLOGGED`, `table "inbox"`, ``},
		{`ALTER TABLE inbox_queue SET UNLOGGED`, `table "inbox_queue"`, ``},
	}
	if h.count(t, `SELECT current_setting('server_version_num')::int`) >= 150000 {
		list = append(list, damage{`ALTER SEQUENCE outbox_id_seq SET UNLOGGED`, `sequence "outbox_id_seq"`, ``})
	}
	var cures []string
	for _, d := range list {
		execScript(t, h, d.sql)
		var found *schema.CheckError
		require.ErrorAs(t, schema.Check(t.Context(), h.db), &found, d.sql)
		require.Len(t, found.Problems, 1)
		p := found.Problems[0]
		require.Equal(t, d.object, p.Object)
		require.Equal(t, "is unlogged: a crash of the server would empty it", p.Found)
		if d.cure != "" {
			require.Equal(t, d.cure, p.Cure)
		}
		f := findings(t, h)["schema"]
		require.Equal(t, admin.Critical, f.Severity)
		r := ctl{t: t, url: h.url}.run("check")
		require.Equal(t, 2, r.code, r.out)
		require.Contains(t, r.out, p.Object+" is unlogged")
		execScript(t, h, p.Cure)
		cures = append(cures, p.Cure)
		after, err := schema.Inspect(t.Context(), h.db)
		require.NoError(t, err)
		require.Empty(t, after, p.Cure)
	}

	for _, d := range list {
		if d.object != `table public."Other"` {
			execScript(t, h, d.sql)
		}
	}
	h.exec(t, `ALTER TABLE "Other" SET UNLOGGED`)
	for _, cure := range cures {
		execScript(t, h, cure)
	}
	h.writeRows(t, 60, "")
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) SELECT n, 'far', 't', '' FROM unnest('{120, 170, 520}'::int[]) n`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id) VALUES ('c', 'm')`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id) VALUES ('s', 'm')`)
	killBackend(t, h)
	assert.Equal(t, 63, h.count(t, `SELECT count(*) FROM outbox`))
	assert.Equal(t, 2, h.count(t, `SELECT (SELECT count(*) FROM inbox) + (SELECT count(*) FROM inbox_queue)`))
	assert.Greater(t, h.count(t, `SELECT nextval('outbox_id_seq')`), 60, "no id is handed out again")
	h.exec(t, `UPDATE pg_class SET relpersistence = 'u' WHERE oid = 'outbox'::regclass`) // as CREATE UNLOGGED TABLE did
	require.NoError(t, schema.Check(t.Context(), h.db), "it holds nothing, and nothing makes it logged")
}
