package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// An operator's night: each test makes one thing go wrong, sees what Doctor says of it, does what that names as the
// cure, and sees that it was one.

// TestNightPoison: one message that its broker refuses blocks its key.
func TestNightPoison(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	w := startForwarderOn(t, h, quickConfig(), func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "poison" {
			return errRefused
		}
		return nil
	})
	w.publish(t, "orders", "K", "poison", "behind it")
	f := ails(t, h, "failing")
	assert.Equal(t, admin.Warning, f.Severity)
	assert.Contains(t, f.Evidence, `blocked keys: 1`)
	assert.Contains(t, f.Evidence, errRefused.Error())
	cure(t, h, f)
	w.arrives(t, "behind it")
	cured(t, h, "failing")
}

// TestNightDeadLetter: messages died of a broker that could not take them; now it can.
func TestNightDeadLetter(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := classifyingConfig()
	var mended atomic.Bool
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error {
		if mended.Load() {
			return nil
		}
		return errMalformed
	})
	w.publish(t, "orders", "", "1", "2")
	dead := func() bool { return h.states(t, "true")["dead"] == 2 }
	eventually(t, dead, "both are dead")
	f := ails(t, h, "dead")
	assert.Contains(t, f.Evidence, "2 messages of the outbox are dead")
	cure(t, h, f) // too early
	eventually(t, dead, "they die once more")
	f = ails(t, h, "dead")
	mended.Store(true)
	order(t, h, f, "requeue", "--yes")
	w.arrives(t, "1", "2")
	cured(t, h, "dead")
}

// TestNightHandlerFails: what came in is not handled, and nothing is dead yet.
func TestNightHandlerFails(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error) VALUES
		('shop/book', 'a', now() - interval '5 minutes', 7, 'no relation "bookings"'), ('shop/book', 'b', now() - interval '2 seconds', 1, 'a moment ago'),
		('shop/book', 'revived', now() - interval '5 minutes', 0, 'before it was requeued')`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, payload, state, first_seen_at, last_seen_at, due_at, attempts, last_error)
		VALUES ('bank', 'c', 'payments', '', 'processing', now() - interval '5 minutes', now(), now() + interval '1 minute', 3, 'bank is closed'),
		('bank', 'once', 'payments', '', 'processing', now() - interval '5 minutes', now(), now() + interval '1 minute', 1, 'bank is slow')`)
	f := ails(t, h, "failing")
	assert.Equal(t, admin.Warning, f.Severity)
	assert.Regexp(t, `1 message of the inbox keeps failing, consumer shop/book, the oldest for [5-9]m`, f.Evidence)
	assert.Contains(t, f.Evidence, `bookings`)
	order(t, h, f, "discard", "--yes")
	f = findings(t, h)["failing"]
	assert.Regexp(t, `1 message of the queue keeps failing, topic payments, the oldest written [5-9]m`, f.Evidence)
	h.exec(t, `UPDATE inbox_queue SET state = 'done', due_at = NULL, done_at = now()`)
	cured(t, h, "failing")
}

// TestNightBrokerGone: it comes back, and nobody has to do anything else.
func TestNightBrokerGone(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	var back atomic.Bool
	w := startForwarderOn(t, h, classifyingConfig(), func(string, *message.Message) error {
		if back.Load() {
			return nil
		}
		return errDown
	})
	w.publish(t, "orders", "K", "1")
	f := ails(t, h, "topic_unavailable")
	assert.GreaterOrEqual(t, f.Severity, admin.Warning)
	assert.Contains(t, f.Evidence, errDown.Error())
	assert.Contains(t, f.Cure, "resumes the topic by itself")
	back.Store(true)
	w.arrives(t, "1")
	cured(t, h, "topic_unavailable")
}

// TestNightPaused: somebody paused a topic and went home.
func TestNightPaused(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	require.NoError(t, newAdmin(t, h).Pause(t.Context(), admin.TopicAct{Topic: "orders", Reason: "until bob's back"}))
	w := startForwarder(t, h, quickConfig())
	w.publish(t, "orders", "K", "1")
	f := ails(t, h, "topic_paused")
	assert.Regexp(t, `paused topic "orders" [0-9.ms]+ ago \(alice: until bob's back\)`, f.Evidence)
	assert.NotContains(t, findings(t, h), "backlog", "one reason is enough")
	cure(t, h, f)
	w.arrives(t, "1")
	cured(t, h, "topic_paused")
}

// begin opens a transaction on a connection of its own, which ends with the test or when somebody ends it.
func begin(t testing.TB, h handle, statements ...string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), h.url+"&application_name=culprit")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, s := range statements {
		_, err := conn.Exec(t.Context(), s)
		require.NoError(t, err)
	}
	return conn
}

// TestNightIdleTransaction: it has locked a row that cannot be settled.
func TestNightIdleTransaction(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.publish(t, "orders", "", "1")
	begin(t, h, "BEGIN", "SELECT FROM outbox FOR UPDATE")
	w := startForwarder(t, h, quickConfig())
	w.arrives(t, "1")
	f := ails(t, h, "idle_transaction")
	assert.Contains(t, f.Evidence, `("culprit"), idle in transaction`)
	assert.Contains(t, f.Evidence, "RowShareLock")
	assert.Equal(t, 0, h.states(t, "true")["done"])
	cure(t, h, f)
	eventually(t, func() bool { return h.states(t, "true")["done"] == 1 }, "it is settled")
	cured(t, h, "idle_transaction")
}

// TestNightLongWriter: its messages are not there before it commits.
func TestNightLongWriter(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	conn := begin(t, h, "BEGIN", "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')")
	ended := make(chan error, 1)
	go func() { _, err := conn.Exec(t.Context(), "SELECT pg_sleep(600)"); ended <- err }()
	f := ails(t, h, "long_transaction")
	assert.Contains(t, f.Evidence, "RowExclusiveLock")
	assert.Contains(t, f.Evidence, "active")
	cure(t, h, f)
	require.Error(t, <-ended)
	cured(t, h, "long_transaction")
}

// TestNightTableLock: somebody changes the table by hand.
func TestNightTableLock(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	begin(t, h, "BEGIN", "LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE")
	f := ails(t, h, "table_lock")
	assert.GreaterOrEqual(t, f.Severity, admin.Warning)
	cure(t, h, f)
	cured(t, h, "table_lock")
}

// TestNightForgottenTransaction: a transaction manager died between its two phases.
func TestNightForgottenTransaction(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	gid := "o'clock " + strings.TrimPrefix(role(h), "/")
	begin(t, h, "BEGIN", "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')", "PREPARE TRANSACTION '"+
		strings.ReplaceAll(gid, "'", "''")+"'")
	t.Cleanup(func() {
		// else the database stays
		_, _ = h.pool.Exec(context.Background(), "ROLLBACK PREPARED '"+strings.ReplaceAll(gid, "'", "''")+"'")
	})
	f := ails(t, h, "prepared_transactions")
	cure(t, h, f)
	cured(t, h, "prepared_transactions")
}

// TestNightUnreadTopic: a topic is misspelt among those of the forwarders; then the right ones wait for the wrong ones
// to leave.
func TestNightUnreadTopic(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.Topics = []string{"ordres", "bills"}
	w := startForwarder(t, h, cfg)
	h.publish(t, "orders", "K", "1")
	h.exec(t, "UPDATE outbox SET created_at = now() - interval '2 minutes'")
	f := ails(t, h, "topic_unread")
	assert.Contains(t, f.Cure, `add "orders" to forwarder.Config.Topics`)

	cfg.Topics = []string{"orders", "bills"}
	next, err := forwarder.New(h.db, w.fakeBroker, cfg, nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- next.Run(t.Context()) }()
	f = ails(t, h, "forwarder_waits")
	assert.Contains(t, f.Cure, "stop those")
	require.NoError(t, w.Forwarder.Close())
	w.arrives(t, "1")
	cured(t, h, "forwarder_waits")
	cured(t, h, "topic_unread")
	require.NoError(t, next.Close())
	require.NoError(t, <-done)
}

// TestNightBacklog: more is written than one slow call after another can publish.
func TestNightBacklog(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, created_at) SELECT 'u' || i, 'orders', '', now() - interval `+
		`'2 minutes' FROM generate_series(1, 2000) i`)
	cfg := quickConfig()
	cfg.Concurrency = 1
	slow := make(chan struct{})
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error {
		select {
		case <-slow:
		case <-time.After(100 * time.Millisecond):
		}
		return nil
	})
	defer close(slow)
	f := ails(t, h, "backlog")
	assert.Regexp(t, `messages of topic "orders" are ready, the oldest for [2-9]m`, f.Evidence)
	assert.Contains(t, f.Cure, "raise forwarder.Config.Concurrency, or run more forwarders")
	cfg.Concurrency = 0
	w.join(t, h, cfg)
	cfg.Concurrency = 256
	w.join(t, h, cfg)
	require.NoError(t, w.Forwarder.Close()) // and not the slow one
	cured(t, h, "backlog")
}

// TestNightSmallPool, and settings that cannot go well.
func TestNightSmallPool(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	h := newPgxHandle(t, at)
	small := pgxHandle(t, "small", at, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	cfg := quickConfig()
	cfg.PublishTimeout, cfg.Retention, cfg.LeaseTTL = -1, -1, 2900*time.Millisecond
	w := startForwarder(t, small, cfg)
	f := ails(t, h, "pool")
	assert.Contains(t, f.Evidence, "has 1 connection")
	assert.Contains(t, f.Evidence, "uses up to 2 of them itself")
	assert.Contains(t, f.Cure, "a pool of its own, with 2")
	said := func() (all string) {
		list, err := newAdmin(t, h).Doctor(t.Context())
		require.NoError(t, err)
		for _, f := range list {
			all += f.String() + "\n"
		}
		return all
	}
	for _, part := range []string{"has no limit for the time of a publish", "set forwarder.Config.PublishTimeout",
		"lasts 2.9s: after a slower renewal", "set forwarder.Config.LeaseTTL to 3s", "info retention: forwarder",
		"deletes messages on publish"} {
		assert.Contains(t, said(), part)
	}
	require.NoError(t, w.Forwarder.Close())

	huge := pgxHandle(t, "huge", at, func(cfg *pgxpool.Config) { cfg.MaxConns = 10_000 })
	cfg = classifyingConfig()
	cfg.PublishTimeout, cfg.CloseTimeout = 20*time.Second, 10*time.Second
	w = startForwarder(t, huge, cfg)
	assert.Contains(t, said(), "set forwarder.Config.CloseTimeout to 20s or more")
	require.NoError(t, w.Forwarder.Close())

	its := pgxHandle(t, "own", at, func(cfg *pgxpool.Config) { cfg.MaxConns = 2 }) // as it said
	cfg = classifyingConfig()
	cfg.LeaseTTL, cfg.CloseTimeout = 3*time.Second, 30*time.Second
	startForwarder(t, its, cfg)
	eventually(t, func() bool {
		return h.count(t, "SELECT count(*) FROM outbox_forwarders WHERE facts->>'pool_conns' = '2'") == 1
	}, "it says what pool it has")
	for _, check := range []string{"pool", "classify", "timeouts", "retention"} {
		cured(t, h, check)
	}
	// handlers share it
	h.exec(t, `UPDATE outbox_forwarders SET facts = facts || '{"consumers": {"shop/book": ["orders"]}}'`)
	assert.Contains(t, ails(t, h, "pool").Evidence, "has 2 connections")
}

// TestNightMissingGrant: somebody took a right from the role of the forwarder, and another from that of the writer.
func TestNightMissingGrant(t *testing.T) {
	extended(t)
	t.Parallel()
	owner, as := newRoles(t)
	sender, writer := as("forwarder"), as("writer")
	w := startForwarder(t, sender, quickConfig())
	forwards, writes := `"`+role(owner)+`forwarder"`, `"`+role(owner)+`writer"`
	owner.exec(t, "REVOKE DELETE ON outbox FROM "+forwards)
	f := ails(t, owner, "privileges")
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Contains(t, f.Evidence, `"outbox" denies DELETE to role "`+role(owner)+`login_forwarder"`)
	cure(t, owner, f)
	cured(t, owner, "privileges")
	owner.exec(t, "REVOKE USAGE ON SEQUENCE outbox_id_seq FROM "+writes)
	f = ails(t, owner, "privileges")
	assert.Contains(t, f.Evidence, `may write messages`)
	cure(t, owner, f)
	cured(t, owner, "privileges")
	writer.publish(t, "orders", "K", "1")
	w.arrives(t, "1")
}

// TestNightRetention: nobody deletes what is old.
func TestNightRetention(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, created_at, published_at) VALUES ('u', 'orders', '', `+
		`now() - interval '9 days', now() - interval '9 days')`)
	h.exec(t, `INSERT INTO outbox_forwarders (id, name, scope, topics, expires_at, facts) VALUES (gen_random_uuid(), `+
		`'vanished', '*', '{}', now() - interval '1 minute', $1)`,
		fmt.Sprintf(`{"retention": %d}`, 30*24*time.Hour))
	assert.NotContains(t, findings(t, h), "retention", "they are meant to be kept, though nobody is alive who would")
	h.exec(t, "DELETE FROM outbox_forwarders")
	f := ails(t, h, "retention")
	assert.Contains(t, f.Evidence, "no running forwarder deletes them")
	assert.Contains(t, f.Cure, "admin.Clean with OutboxRetention 168h0m0s")
	cfg := quickConfig()
	cfg.Retention = -1
	w := startForwarder(t, h, cfg)
	eventually(t, func() bool {
		f = ails(t, h, "retention")
		return !strings.Contains(f.Evidence, "no running forwarder")
	}, "it is running")
	assert.Contains(t, f.Evidence, "the running forwarders delete only what they publish themselves (Retention -1)")
	require.NoError(t, w.Forwarder.Close()) // it deletes what it publishes, which is worth another word
	order(t, h, f, "clean", "--yes")
	cured(t, h, "retention")
}

// TestNightPooler: notifications do not come through it.
func TestNightPooler(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	f := ails(t, newPgBouncerHandle(t, at), "listen")
	assert.Contains(t, f.Evidence, "there is a pooler in between")
	assert.Contains(t, f.Cure, "a pgx pool that reaches Postgres directly")
	cured(t, newPgxHandle(t, at), "listen")
}

// TestNightLosingBroker: it may lose what it acknowledged, and nothing is kept that could be sent again.
func TestNightLosingBroker(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := classifyingConfig()
	cfg.Retention = -1
	w := startForwarder(t, h, cfg)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('u', 'orders', '', now() + interval '1 hour')")
	loses := brokerFunc(func(topics []string) ([]asked.Risk, []string, error) {
		return []asked.Risk{{Severity: asked.Warning, Evidence: fmt.Sprint(topics), Cure: "three replicas"}}, nil, nil
	})
	found := findings(t, h, loses)
	assert.Equal(t, "[orders]", found["broker"].Evidence)
	assert.Equal(t, admin.Critical, found["retention"].Severity)
	assert.Contains(t, found["retention"].Cure, "set forwarder.Config.Retention")
	require.NoError(t, w.Forwarder.Close())
	cfg.Retention = time.Hour
	w.join(t, h, cfg)
	assert.NotContains(t, findings(t, h, loses), "retention")

	found = findings(t, h, brokerFunc(func([]string) ([]asked.Risk, []string, error) { return nil, nil, errDown }))
	assert.Equal(t, admin.Critical, found["broker"].Severity)
	assert.Contains(t, found["broker"].Evidence, errDown.Error())
}

type brokerFunc func(topics []string) ([]asked.Risk, []string, error)

func (f brokerFunc) Check(_ context.Context, topics []string) ([]asked.Risk, []string, error) {
	return f(topics)
}

// TestNightTwoServices: somebody copied a service, its name included, so each handles what the other one should.
func TestNightTwoServices(t *testing.T) {
	t.Parallel()
	at := newMigratedDatabase(t)
	shop, billing := newPgxHandle(t, at), newPgxHandle(t, at)
	cfg := sharing(classifyingConfig()) // what a forwarder says of itself is written with its lease
	cfg.Name = "billing"
	w := startForwarder(t, billing, cfg)
	cfg.Name = "shop"
	w.join(t, shop, cfg)
	msg := newMessage("order")
	handled := func(h handle, service string) (calls int) {
		handle := chain(func(*message.Message) ([]*message.Message, error) { calls++; return nil, nil },
			newTx(t, h, middleware.TxConfig{}), newInbox(t, h, middleware.InboxConfig{Service: service, Consumer: "book"}))
		_, err := handle(msg.Copy())
		require.NoError(t, err)
		return calls
	}
	require.Equal(t, 1, handled(shop, "shop"))
	require.Zero(t, handled(billing, "shop"), "it has it from the other one's inbox row that it is done")
	// A test cannot be two programs, so one of them is called another here.
	eventually(t, func() bool {
		return billing.exec(t, `UPDATE outbox_forwarders SET facts = facts || '{"program": "example.com/billing"}' `+
			`WHERE name = 'billing' AND facts->'consumers' ? 'shop/book'`) == 1
	}, "its row names the consumer")
	f := ails(t, shop, "consumers")
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Contains(t, f.Evidence, `example.com/billing`)
	assert.Contains(t, f.Cure, "a middleware.StackConfig.Service of its own")

	require.NoError(t, w.Forwarder.Close())
	mended := newPgxHandle(t, at)
	cfg.Name = "billing"
	w.join(t, mended, cfg)
	require.Equal(t, 1, handled(mended, "billing"))
	eventually(t, func() bool {
		return mended.exec(t, `UPDATE outbox_forwarders SET facts = facts || '{"program": "example.com/billing"}' `+
			`WHERE name = 'billing' AND facts->'consumers' ? 'billing/book'`) == 1
	}, "its row names the consumer")
	assert.NotContains(t, findings(t, shop), "consumers")
}

// TestNightAbandonedQueue: the only dispatcher died in the middle of its work.
func TestNightAbandonedQueue(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("letters", 3)...)
	claimed, err := s.Claim(t.Context(), queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 1})
	require.NoError(t, err)
	require.Len(t, claimed, 1)
	assert.NotContains(t, findings(t, h), "queue_abandoned", "it may still be at work")
	h.exec(t, "UPDATE inbox_queue SET locked_until = now() - interval '11 minutes' WHERE owner IS NOT NULL")
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, payload, state, first_seen_at, last_seen_at)
		SELECT 'shop', 'fine ' || i, 'a healthy topic ' || i, '', 'processing', now(), now() FROM generate_series(1, 20) i`)
	f := ails(t, h, "queue_abandoned")
	h.exec(t, "DELETE FROM inbox_queue WHERE message_id LIKE 'fine%'")
	assert.Equal(t, admin.Warning, f.Severity, "its handler may be in a transaction that takes so long")
	assert.Regexp(t, `1 message of topic "letters" in the queue has an owner whose lease expired, the first 1[1-9]m`,
		f.Evidence)
	assert.Contains(t, f.Evidence, "or its handler has kept a transaction open since")
	h.exec(t, "UPDATE inbox_queue SET first_seen_at = now() - interval '2 minutes'")
	h.exec(t, "UPDATE inbox_queue SET locked_until = now() WHERE owner IS NOT NULL")
	f = ails(t, h, "queue_waits")
	assert.Regexp(t, `2 messages of topic "letters" in the queue are due, the oldest for [2-9]m`, f.Evidence)

	eventually(t, func() bool { // a claim takes back what was left, now and then
		_, err := s.Claim(t.Context(), queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 2})
		require.NoError(t, err)
		return h.count(t, "SELECT count(*) FROM inbox_queue WHERE crashes > 0") == 1
	}, "it is taken back")
	h.exec(t, "UPDATE inbox_queue SET due_at = now() - interval '1 second' WHERE due_at IS NOT NULL")
	assert.Contains(t, ails(t, h, "queue_crashes").Cure, "DispatcherConfig.LeaseTTL")
	h.exec(t, "UPDATE inbox_queue SET owner = NULL, locked_until = NULL")
	dispatching(t, s, quickDispatcher(map[string]queue.Handler{
		"letters": {Handle: func(context.Context, *queue.Message) error { return nil }},
	}))
	for _, check := range []string{"queue_abandoned", "queue_waits", "queue_crashes"} {
		cured(t, h, check)
	}
}
