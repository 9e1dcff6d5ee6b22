package integration_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
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
