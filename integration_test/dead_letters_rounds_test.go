package integration_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestDeadRetentionAndRefusedRows: rows that a trigger refuses to change, with an error or silently, stay. The messages
// around them are discarded, once an hour, and the entry in the audit log ends with the error.
func TestDeadRetentionAndRefusedRows(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, attempts, dead_at)
		select u, 'orders', '', '', 3, now() - interval '2 hours'
		  from unnest(array(select 'ignored' from generate_series(1, 1000)) || array['a', 'refused', 'b'])
		       with ordinality as w(u, n) order by n`)
	h.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin
		if new.uuid = 'refused' then raise exception 'it is needed'; end if;
		if new.uuid = 'ignored' then return null; end if;
		return new; end $$`)
	h.exec(t, `create trigger refuse before update on outbox for each row execute function refuse()`)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.DeadRetention = 20*time.Millisecond, time.Hour
	w := startForwarder(t, h, cfg)
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is not null") == 2 },
		"the others are discarded")
	eventually(t, func() bool { return w.log.count("discarding dead messages past DeadRetention failed") > 0 },
		"it is logged")
	for range 2 { // rounds of other work
		h.exec(t, `insert into inbox (consumer, message_id, received_at, processed_at)
			values ('s/h', 'old', now() - interval '31 days', now() - interval '31 days')`)
		eventually(t, func() bool { return h.count(t, "select count(*) from inbox") == 0 }, "other rows are cleaned up")
	}
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox_audit"))
	assert.Equal(t, 1, h.count(t, `select count(*) from outbox_audit where ended_at is not null and touched = 2
		and outcome like '%it is needed%'`))
}

// TestDeadRetentionReadsEachMessageOnce, even while an open transaction keeps discarded messages in the index.
func TestDeadRetentionReadsEachMessageOnce(t *testing.T) {
	extended(t)
	t.Parallel()
	url := newMigratedDatabase(t)
	h, worker := newPgxHandle(t, url), newPgxHandle(t, url)
	h.exec(t, `insert into inbox_queue (source, message_id, topic, payload, state, history)
		select 'shop', i::text, 'orders', '', 'dead',
		       jsonb_build_array(jsonb_build_object('died', now() - case when i % 2 = 0 then interval '2 hours' else '0' end))
		  from generate_series(1, 6000) i`)
	h.exec(t, "analyze inbox_queue")
	old, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.Background()) }()
	_, err = old.Exec(t.Context(), "select 1")
	require.NoError(t, err)

	_, err = newStore(t, worker, queue.StoreConfig{DeadRetention: time.Hour}).Clean(t.Context())
	require.NoError(t, err)
	worker.pool.Close() // closing makes its sessions report their statistics
	assert.Equal(t, 3000, h.count(t, "select count(*) from inbox_queue where state = 'done'"))
	read := func() int {
		return h.count(t, "select sum(idx_tup_read) from pg_stat_user_indexes where indexrelname like 'inbox_queue%dead%'")
	}
	eventually(t, func() bool { return read() >= 6000 }, "it is read with the index")
	assert.Equal(t, 6000, read())
}

// atStatement is a tracer that runs a function before the first statement that contains a text.
type atStatement struct {
	text string
	once sync.Once
	do   func()
}

func (a *atStatement) on(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = a }

func (a *atStatement) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	if strings.Contains(data.SQL, a.text) {
		a.once.Do(a.do)
	}
	return ctx
}

func (a *atStatement) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestDeadRetentionOfAMessageThatDiedAgain: a message that is requeued and dies again while dead messages are discarded
// stays, as its death is recent.
func TestDeadRetentionOfAMessageThatDiedAgain(t *testing.T) {
	extended(t)
	t.Parallel()
	url := newMigratedDatabase(t)
	h := newPgxHandle(t, url)
	h.exec(t, `insert into inbox_queue (source, message_id, topic, payload, state, history)
		select 'shop', id, 'orders', '', 'dead', jsonb_build_array(jsonb_build_object('died', now() - interval '2 hours'))
		  from unnest(array['again', 'old']) id`)
	again := &atStatement{text: `INSERT INTO "outbox_audit"`, do: func() {
		h.exec(t, `update inbox_queue set history = jsonb_build_array(jsonb_build_object('died', now()))
			where message_id = 'again'`)
	}}
	traced := pgxHandle(t, "traced", url, again.on)
	_, err := newStore(t, traced, queue.StoreConfig{DeadRetention: time.Hour}).Clean(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"again dead", "old done"},
		column[string](t, h, "select message_id || ' ' || state from inbox_queue order by 1"))
}

// TestDeadRetentionLeavesTheInboxAlone: InboxRetention -1 is for a role without rights on it.
func TestDeadRetentionLeavesTheInboxAlone(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into inbox (consumer, message_id, attempts, dead_at)
		values ('s/h', 'old', 3, now() - interval '2 hours')`)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, attempts, dead_at)
		values ('old', 'orders', '', '', 3, now() - interval '2 hours')`)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, published_at, created_at)
		values ('published', 'orders', '', '', now() - interval '8 days', now() - interval '8 days')`)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.DeadRetention, cfg.InboxRetention = 20*time.Millisecond, time.Hour, -1
	startForwarder(t, h, cfg)
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox where uuid = 'published' or published_at is null") == 0
	}, "the outbox was cleaned")
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is null"))
}
