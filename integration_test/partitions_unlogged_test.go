package integration_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestUnloggedPartition: a server crash empties unlogged tables. Check and Doctor find each table where that loses
// messages, and after the printed cures a crash loses nothing.
func TestUnloggedPartition(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	intoPartitions(t, h, 10, 20, 30, 40, 50)
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
		found, err := schema.Inspect(t.Context(), h.db)
		require.NoError(t, err)
		require.Len(t, found, 1)
		p := found[0]
		require.ErrorContains(t, schema.Check(t.Context(), h.db), p.String(), d.sql)
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
	assert.Greater(t, h.count(t, `SELECT nextval('outbox_id_seq')`), 60, "no id is assigned again")
	h.exec(t, `UPDATE pg_class SET relpersistence = 'u' WHERE oid = 'outbox'::regclass`) // like CREATE UNLOGGED TABLE
	require.NoError(t, schema.Check(t.Context(), h.db), "it is empty, and no statement makes it logged")
}
