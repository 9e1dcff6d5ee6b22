package integration_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/move"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe/prom"
	"github.com/millrace-go/watermill-outbox/queue"
	"github.com/millrace-go/watermill-outbox/schema"
)

// newRoles creates the roles of schema.Roles in a migrated database, with an application's table next to ours. as opens
// a handle of a login that has only the given role.
func newRoles(t *testing.T) (owner handle, as func(role string) handle) {
	t.Helper()
	owner = newPgxHandle(t, newMigratedDatabase(t))
	at, err := url.Parse(owner.url)
	require.NoError(t, err)
	prefix := strings.TrimPrefix(at.Path, "/") + "_"
	sql, err := schema.Roles(schema.RolesConfig{Prefix: prefix})
	require.NoError(t, err)
	conn, err := owner.pool.Acquire(t.Context())
	require.NoError(t, err)
	for range 2 { // it may be run again
		_, err = conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err)
	}
	conn.Release()
	owner.exec(t, "CREATE TABLE orders (id int)")
	owner.exec(t, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	var names []string
	t.Cleanup(func() {
		for _, name := range append(names, "writer", "worker", "forwarder", "cleaner", "admin", "mover", "reader") {
			_, _ = owner.pool.Exec(context.Background(), `DROP OWNED BY "`+prefix+name+`"`)
			_, err := owner.pool.Exec(context.Background(), `DROP ROLE "`+prefix+name+`"`)
			assert.NoError(t, err)
		}
	})
	return owner, func(role string) handle {
		names = append(names, "login_"+role)
		owner.exec(t, `CREATE ROLE "`+prefix+`login_`+role+`" LOGIN IN ROLE "`+prefix+role+`"`)
		own := *at
		own.User = url.User(prefix + "login_" + role)
		return newPgxHandle(t, own.String())
	}
}

// denied checks that statements are refused.
func denied(t *testing.T, h handle, statements ...string) {
	t.Helper()
	for _, s := range statements {
		_, err := h.pool.Exec(t.Context(), s)
		assert.Equal(t, text.InsufficientPrivilege, text.SQLState(err), "%s: %v", s, err)
	}
}

// TestRoles: each role can do its job with our own code, and everything else is refused.
func TestRoles(t *testing.T) {
	t.Parallel()
	owner, as := newRoles(t)
	var all []handle
	login := func(role string) handle { h := as(role); all = append(all, h); return h }

	writer := login("writer")
	pub, err := outbox.NewPublisher(writer.db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	publish := func(payload string) {
		require.NoError(t, outbox.InTx(t.Context(), writer.db, func(ctx context.Context) error {
			return pub.PublishContext(ctx, "secrets", newMessage(payload))
		}))
	}
	publish("first")
	handle := chain(func(*message.Message) ([]*message.Message, error) { return nil, nil },
		newTx(t, writer, middleware.TxConfig{}), newInbox(t, writer, middleware.InboxConfig{}))
	_, err = handle(newMessage("handled"))
	require.NoError(t, err)
	denied(t, writer, "SELECT payload FROM outbox", "SELECT id FROM outbox", "UPDATE outbox SET topic = 'x'",
		"DELETE FROM outbox", "DELETE FROM inbox",
		"INSERT INTO outbox (id, uuid, topic, payload) VALUES (1, 'x', 'x', '')",
		"INSERT INTO outbox (uuid, topic, payload, published_at) VALUES ('x', 'x', '', now())",
		"SELECT FROM outbox_audit", "SELECT payload FROM inbox_queue", "UPDATE outbox_lanes SET owner = NULL")

	worker := login("worker")
	store, err := queue.NewStore(worker.db, queue.StoreConfig{}, nil)
	require.NoError(t, err)
	id := queue.ID{Source: "shop", MessageID: "1"}
	_, err = store.Enqueue(t.Context(), queue.Item{ID: id, Topic: "orders", Payload: []byte("x")})
	require.NoError(t, err)
	me := queue.NewOwner()
	claimed, err := store.Claim(t.Context(), queue.Claim{Owner: me, LeaseTTL: time.Minute, Limit: 1})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	n, err := store.Ack(t.Context(), me, id)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	denied(t, worker, "SELECT FROM outbox", "SELECT FROM inbox", "SELECT FROM outbox_audit")

	reader := login("reader")
	viewer := newAdmin(t, reader)
	assert.Equal(t, 1.0, scraped(t, newCollector(t, reader, prom.CollectorConfig{}))["up{}"])
	list, err := viewer.List(t.Context(), admin.Filter{}, admin.Page{})
	require.NoError(t, err)
	require.Len(t, list.Messages, 1)
	_, err = viewer.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	_, err = viewer.Stats(t.Context(), admin.StatsConfig{Exact: true})
	require.NoError(t, err)
	for _, table := range []admin.Table{admin.Outbox, admin.Inbox} {
		_, err = viewer.ErrorGroups(t.Context(), admin.Filter{In: table})
		require.NoError(t, err)
		states := []admin.State{admin.Dead, admin.Failing, admin.Done}
		_, err = viewer.List(t.Context(), admin.Filter{In: table, States: states}, admin.Page{})
		require.NoError(t, err)
	}
	_, _, err = viewer.Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	m, err := viewer.Get(t.Context(), admin.Outbox, list.Messages[0].ID)
	require.NoError(t, err)
	assert.Empty(t, m.Payload)
	_, err = viewer.Requeue(t.Context(), admin.Action{Filter: admin.Filter{All: true}})
	require.ErrorContains(t, err, "outboxctl migrate roles")
	require.ErrorContains(t, viewer.Pause(t.Context(), "secrets", ""), "outboxctl migrate roles")
	denied(t, reader, "SELECT payload FROM outbox", "SELECT payload FROM inbox_queue",
		"INSERT INTO outbox (uuid, topic, payload) VALUES ('x', 'x', '')",
		"UPDATE outbox SET last_error = ''", "DELETE FROM outbox", "UPDATE inbox SET attempts = 0",
		"DELETE FROM outbox_audit", "SELECT nextval('outbox_id_seq')")
	owner.exec(t, "GRANT SELECT (payload) ON outbox TO "+`"`+role(owner)+`reader"`)
	m, err = viewer.Get(t.Context(), admin.Outbox, list.Messages[0].ID)
	require.NoError(t, err)
	assert.Equal(t, "first", string(m.Payload))

	sender := login("forwarder")
	broker := newFakeBroker()
	cfg := quickConfig()
	cfg.CleanInterval = 50 * time.Millisecond
	f := runForwarder(t, sender, broker, cfg, nil)
	broker.arrives(t, "first")
	publish("second")
	broker.arrives(t, "second")
	denied(t, sender, "SELECT FROM orders", "INSERT INTO orders VALUES (1)",
		"INSERT INTO outbox (uuid, topic, payload) VALUES ('x', 'x', '')",
		"UPDATE outbox SET payload = ''", "UPDATE outbox SET topic = ''", "SELECT FROM outbox_audit",
		"SELECT payload FROM inbox_queue", "INSERT INTO inbox VALUES ('x', 'x')")

	mender := login("admin")
	a := newAdmin(t, mender)
	everything := admin.Action{Filter: admin.Filter{All: true}, Reason: "a try"}
	eventually(t, func() bool { return owner.states(t, "true")["done"] == 2 }, "both messages are settled")
	r, err := a.Replay(t.Context(), everything)
	require.NoError(t, err)
	assert.Equal(t, int64(2), r.Touched)
	broker.wait(t, "both again", func() bool { return len(broker.all()) == 4 })
	owner.exec(t, "INSERT INTO outbox (uuid, topic, payload, dead_at, attempts) VALUES ('d1', 'x', 'd1', now(), 1), "+
		"('d2', 'x', 'd2', now(), 1)")
	for _, do := range []func(context.Context, admin.Action) (admin.Result, error){
		a.Discard, a.Requeue, a.Skip, a.RetryNow,
	} {
		_, err = do(t.Context(), everything)
		require.NoError(t, err)
	}
	owner.exec(t, "INSERT INTO inbox (consumer, message_id, dead_at) VALUES ('shop/a', 'dead', now())")
	everything.Filter.In = admin.Inbox
	r, err = a.Requeue(t.Context(), everything)
	require.NoError(t, err)
	assert.Equal(t, int64(1), r.Touched)
	_, err = a.Discard(t.Context(), everything)
	require.NoError(t, err)
	require.NoError(t, a.Pause(t.Context(), "secrets", ""))
	require.NoError(t, a.Resume(t.Context(), "secrets", ""))
	_, err = a.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	denied(t, mender, "UPDATE outbox SET payload = ''", "DELETE FROM outbox", "DELETE FROM outbox_audit",
		"UPDATE outbox_audit SET actor = 'bob'", "UPDATE outbox_audit SET role = 'bob'",
		"INSERT INTO outbox_audit (actor, action, role) VALUES ('bob', 'x', 'bob')",
		"INSERT INTO outbox (uuid, topic, payload, published_at) VALUES ('x', 'x', '', now())", "SELECT FROM orders")
	assert.Equal(t, []string{role(owner) + "login_admin"},
		column[string](t, owner, "SELECT DISTINCT role FROM outbox_audit"))

	cleaner := login("cleaner")
	owner.exec(t, "UPDATE outbox SET published_at = now() - interval '1 day', created_at = now() - interval '1 day' "+
		"WHERE published_at IS NOT NULL")
	owner.exec(t, "INSERT INTO inbox_queue (source, message_id, topic, payload, state, done_at) "+
		"VALUES ('s', 'done', 'orders', '', 'done', now() - interval '1 day')")
	for _, dry := range []bool{true, false} {
		gone, err := newAdmin(t, cleaner).Clean(t.Context(), admin.CleanConfig{
			OutboxRetention: time.Hour, InboxRetention: time.Hour, QueueRetention: time.Hour, DryRun: dry,
		})
		require.NoError(t, err)
		assert.Positive(t, gone.Outbox.N)
		assert.EqualValues(t, 1, gone.Queue.N)
	}
	denied(t, cleaner, "SELECT payload FROM outbox", "UPDATE outbox SET published_at = now()", "SELECT FROM orders",
		"DELETE FROM outbox_audit")

	mover := login("mover")
	old := newOldForwarder(t, moveTables[0], owner.url)
	grants := movingPage(t)["With which role"]
	require.Len(t, grants, 1)
	for grant := range strings.SplitSeq(strings.TrimSpace(grants[0]), "\n") {
		owner.exec(t, strings.ReplaceAll(grant, "outbox_mover", `"`+role(owner)+`mover"`))
	}
	require.NoError(t, f.Close())
	owner.exec(t, "DELETE FROM outbox")
	owner.exec(t, "DELETE FROM outbox_audit")
	require.NoError(t, old.pub.Publish("orders", newMessage("moved")))
	require.NoError(t, moveTables[0].publisher(t, old.db).Publish("forwarder_topic", newMessage(`{"no": "envelope"}`)))
	old.visible(t, owner)
	moving, err := outbox.NewPublisher(mover.db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	cfgOf := move.WatermillConfig{Actor: "ann", Reason: "we change", UnreadableAsDead: true}
	there, err := move.FromWatermill(t.Context(), moving, cfgOf)
	require.NoError(t, err)
	back, err := move.ToWatermill(t.Context(), mover.db, cfgOf)
	require.NoError(t, err)
	entries, _, err := newAdmin(t, owner).Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	for i, want := range []admin.AuditEntry{
		{
			ID: back.AuditID, Action: "export", Reason: `to "watermill_forwarder_topic": we change`,
			Result: admin.Result{Matched: admin.Count{N: 1}, Touched: 1},
		},
		{
			ID: there.AuditID, Action: "import", Reason: `from "watermill_forwarder_topic": we change`,
			Result: admin.Result{Matched: admin.Count{N: 2}, Touched: 2},
		},
	} {
		e := entries[i]
		assert.False(t, e.EndedAt.IsZero())
		want.At, want.EndedAt, want.Role, want.Actor, want.Result.AuditID = e.At, e.EndedAt, role(owner)+"login_mover",
			"ann", want.ID
		assert.Equal(t, want, e)
	}
	own := move.TableConfig{
		Table: "orders", Pending: "true", Done: "delete", Columns: move.Columns{Topic: "'secrets'", Payload: "'x'"},
	}
	owner.exec(t, "INSERT INTO orders VALUES (7)")
	own.DryRun = true
	owner.exec(t, `GRANT SELECT, DELETE ON orders TO "`+role(owner)+`mover"`)
	_, err = move.FromTable(t.Context(), moving, own)
	require.ErrorContains(t, err, "permission denied", "locking a row needs UPDATE, as docs/guides/moving.md says")
	own.DryRun = false
	owner.exec(t, `GRANT UPDATE (id) ON orders TO "`+role(owner)+`mover"`)
	there, err = move.FromTable(t.Context(), moving, own)
	require.NoError(t, err)
	assert.EqualValues(t, 1, there.Moved)
	owner.exec(t, `REVOKE ALL ON orders FROM "`+role(owner)+`mover"`)
	owner.exec(t, `REVOKE ALL (id) ON orders FROM "`+role(owner)+`mover"`)
	denied(t, mover, "UPDATE outbox SET topic = 'x'", "UPDATE outbox SET payload = ''",
		"UPDATE outbox SET dead_at = now()", "INSERT INTO outbox (uuid, topic, payload, published_at) "+
			"VALUES ('x', 'x', '', now())",
		"SELECT FROM inbox", "SELECT payload FROM inbox_queue", "DELETE FROM outbox_forwarders",
		"UPDATE outbox_lanes SET owner = NULL", "DELETE FROM outbox_audit",
		"UPDATE outbox_audit SET actor = 'bob'", "SELECT FROM orders")

	for _, h := range all {
		denied(t, h, "TRUNCATE outbox", "DROP TABLE outbox", "CREATE TABLE x (id int)", "INSERT INTO orders VALUES (1)",
			"ALTER TABLE outbox ADD x int")
	}
}

// role returns the prefix of the roles' names.
func role(h handle) string {
	at, _ := url.Parse(h.url)
	return strings.TrimPrefix(at.Path, "/") + "_"
}
