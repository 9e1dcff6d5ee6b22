package integration_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/queue"
	"github.com/millrace-go/watermill-outbox/schema"
)

// setOn has the database of a handle give new sessions a setting.
func setOn(t *testing.T, h handle, setting string) {
	t.Helper()
	h.exec(t, "do $$ begin execute format('alter database %I set "+setting+"', current_database()); end $$")
}

// TestARewriteKeepsTheOrder: a transaction that was open for long has committed, and the table is
// rewritten before the next read, which waits for that. What the transaction wrote looks as if the rewrite had written
// it.
func TestARewriteKeepsTheOrder(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	url := newMigratedDatabase(t)
	other := newPgxHandle(t, url)
	h, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	w := startForwarder(t, h, quickConfig())

	long, err := other.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = long.Exec(t.Context(),
		"insert into outbox (uuid, topic, key, payload) values ('first', 'orders', 'K', 'K-1')")
	require.NoError(t, err)
	before := numbered("before", 1, 200)
	w.publish(t, "orders", "", before...)
	w.arrives(t, before...)
	w.idle(t)

	reads := gate.holdReads()
	gate.arrives(t, "a read", reads...)
	require.NoError(t, long.Commit(t.Context()))
	rewrite, err := other.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = rewrite.Exec(t.Context(), "alter table outbox add column touched uuid default gen_random_uuid()")
	require.NoError(t, err)
	gate.release(reads...)
	eventually(t, func() bool {
		return other.count(t, "select count(*) from pg_locks where not granted and relation::regclass::text = 'outbox'") > 0
	}, "a read waits for the rewrite")
	require.NoError(t, rewrite.Commit(t.Context()))
	w.publish(t, "orders", "K", "K-2")
	w.arrives(t, "K-2", "K-1")
	assert.Equal(t, numbered("K-", 1, 2), w.payloads("K"))
}

// TestARoleThatIsAlteredLater: connections made from then on have its new settings. A forwarder that runs publishes, or
// logs the setting, and goes on once it is reset.
func TestARoleThatIsAlteredLater(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newMigratedDatabase(t)
			admin := newPgxHandle(t, url)
			h := open(t, url)
			log := newLogCapture(t)
			broker := newFakeBroker()
			f, err := forwarder.New(h.db, broker, quickConfig(), log)
			require.NoError(t, err)
			runInBackground(t, f)
			admin.publish(t, "orders", "K", "1")
			broker.arrives(t, "1")

			reconnect := func() {
				admin.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "+
					"and pid <> pg_backend_pid()")
			}
			setOn(t, admin, "default_transaction_isolation = serializable")
			reconnect()
			eventually(t, func() bool { return admin.tryPublish("orders", "K", "2") == nil }, "it has connections again")
			eventually(t, func() bool {
				return slices.Contains(broker.payloads(), "2") || log.count("RESET default_transaction_isolation") > 0
			}, "it publishes, or says why not")
			admin.exec(t, "do $$ begin execute format('alter database %I reset all', current_database()); end $$")
			reconnect()
			broker.arrives(t, "2")
		})
	}
}

// TestInspectNamesTheSetting, who has set it, and the statement that resets it.
func TestInspectNamesTheSetting(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	setOn(t, newPgxHandle(t, url), "default_transaction_isolation = serializable")
	setOn(t, newPgxHandle(t, url), "synchronous_commit = off")
	h := newPgxHandle(t, url)
	database := value[string](t, h, "select quote_ident(current_database())")
	require.ErrorContains(t, schema.Check(t.Context(), h.db), "RESET default_transaction_isolation")
	found, err := schema.Inspect(t.Context(), h.db)
	require.NoError(t, err)
	cures := map[string]string{}
	for _, p := range found {
		cures[p.Object] = p.Cure
	}
	assert.Equal(t, "ALTER DATABASE \""+database+"\" RESET default_transaction_isolation, and reconnect",
		cures["setting default_transaction_isolation"])
	assert.Contains(t, cures, "setting synchronous_commit")
	h.exec(t, "do $$ begin execute format('alter database %I reset all', current_database()); end $$")
}

// TestATransactionOfTheUsersWithAnotherEncoding, which is not ours to set: nothing is written that the server would
// alter.
func TestATransactionOfTheUsersWithAnotherEncoding(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	url := newMigratedDatabase(t)
	setOn(t, newPgxHandle(t, url), "client_encoding = LATIN1")
	h := newPgxHandle(t, url)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	ctx, err := outbox.WithPgxTx(t.Context(), h.db, tx)
	require.NoError(t, err)
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, pub.PublishContext(ctx, odd, newMessage(odd)), "client_encoding")
	require.NoError(t, tx.Rollback(t.Context()))
	tx, err = h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	ctx, err = outbox.WithPgxTx(t.Context(), h.db, tx)
	require.NoError(t, err)
	_, err = storeOn(t, h, quickStore()).Enqueue(ctx, queue.Item{ID: queue.ID{Source: odd, MessageID: odd}, Topic: odd})
	require.ErrorContains(t, err, "client_encoding")
}

// TestAForwarderOfAnotherEncoding than that of those who write does not start, unless its driver sets the encoding.
func TestAForwarderOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	for way, open := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			url := newMigratedDatabase(t)
			writer := newPgxHandle(t, url)
			writer.publish(t, odd, odd, odd)
			setOn(t, writer, "client_encoding = LATIN1")
			broker := newFakeBroker()
			f, err := forwarder.New(open(t, url).db, broker, quickConfig(), nil)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := f.Drain(ctx); way != "sql-pq" {
				require.ErrorContains(t, err, "client_encoding")
				return
			}
			require.NoError(t, err)
			all := broker.all()
			require.Len(t, all, 1)
			assert.Equal(t, [3]string{odd, odd, odd}, [3]string{all[0].topic, all[0].key, all[0].payload})
		})
	}
}
