//go:build unix

package integration_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// handles starts a dispatcher with a handler for a topic of the queue.
func (n *night) handles(topic string, handle func() error) {
	n.Helper()
	dispatching(n, storeOn(n, n.h, quickStore()), quickDispatcher(map[string]queue.Handler{
		topic: {Handle: func(context.Context, *queue.Message) error { return handle() }},
	}))
}

func well() error { return nil }

// stored writes messages to the queue that arrived 20 minutes ago.
func (n *night) stored(topic string, count int) {
	n.Helper()
	storeAll(n, storeOn(n, n.h, quickStore()), items(topic, count)...)
	n.h.exec(n, "UPDATE inbox_queue SET first_seen_at = now() - interval '20 minutes'")
}

var faultsOfTheQueue = []fault{
	{
		name: "the queue has a topic without a handler", check: "queue_unhandled", severity: admin.Critical,
		alert: "QueueTopicUnhandled", did: "a dispatcher with a handler was started",
		inject: func(n *night) { n.stored("letters", 3); n.handles("other", well) },
		cure:   func(n *night, _ admin.Finding) { n.handles("letters", well) },
	},
	{
		name: "a stopping dispatcher handed a delayed message back, due 16 minutes ago", check: "queue_unhandled",
		severity: admin.Critical, alert: "QueueTopicUnhandled", did: "a dispatcher with a handler was started",
		inject: func(n *night) {
			n.stored("letters", 1)
			n.h.exec(n, "UPDATE inbox_queue SET due_at = now() - interval '16 minutes'")
		},
		cure: func(n *night, _ admin.Finding) { n.handles("letters", well) },
	},
	{
		name: "handlers of the queue are too slow", check: "queue_waits", severity: admin.Critical,
		evidence: `messages of topic "letters" in the queue are due, the oldest for 2[0-9]m`, alert: "QueueMessagesLate",
		did: "the handler was made faster", inject: func(n *night) {
			n.stored("letters", 500)
			fast := &n.fast
			n.handles("letters", func() error {
				if !fast.Load() {
					<-time.After(300 * time.Millisecond)
				}
				return nil
			})
		},
		cure: func(n *night, _ admin.Finding) { n.fast.Store(true) },
	},
	{
		name: "a dispatcher was killed while it handled a message", check: "queue_abandoned", severity: admin.Warning,
		evidence: `1 message of topic "victims" in the queue has an owner whose lease expired, the first 1[1-9]m(?s:.*)` +
			"or its handler has kept a transaction open since",
		always: true, did: "a dispatcher was started", inject: func(n *night) {
			storeAll(n, storeOn(n, n.h, quickStore()), items("victims", 1)...) // they wait until their process ends
			p := startQueueProcess(n, queueChild{URL: n.h.url, Dispatchers: 1, Concurrency: 1, LeaseTTL: time.Minute})
			eventually(n, func() bool {
				return n.h.count(n, "SELECT count(*) FROM inbox_queue WHERE owner IS NOT NULL") == 1
			}, "it is handled")
			p.kill()
			n.h.exec(n, "UPDATE inbox_queue SET locked_until = now() - interval '11 minutes'")
		},
		cure: func(n *night, _ admin.Finding) { n.handles("victims", well) },
	},
	{
		name: "a message kills the process that handles it", check: "queue_crashes", severity: admin.Warning, always: true,
		did: "`outboxctl queue discard` of the message that is named", inject: func(n *night) {
			n.handles("letters", well)
			store := storeOn(n, n.h, quickStore())
			storeAll(n, store, append(items("killers", 1), items("letters", 3)...)...)
			p := startQueueProcess(n, queueChild{URL: n.h.url, Dispatchers: 1, Concurrency: 4, LeaseTTL: time.Minute})
			within(n, "it is killed", p.gone)
			n.h.exec(n, "UPDATE inbox_queue SET locked_until = now() - interval '1 s' WHERE owner IS NOT NULL")
			_, err := store.ReapExpired(n.Context())
			require.NoError(n, err)
			eventually(n, func() bool { // the dispatcher has it for a moment, to see that it has no handler for the topic
				return n.h.exec(n, "UPDATE inbox_queue SET crashes = crashes + 2 WHERE topic = 'killers' "+
					"AND owner IS NULL AND crashes = 1") == 1
			}, "its message is reaped, and now it was charged three attempts")
			f := ails(n, n.h, "queue_crashes")
			assert.Contains(n, f.Cure, "DispatcherConfig.LeaseTTL")
			assert.Contains(n, f.Evidence, "message test:killers-0 has done so 3 times")
			assert.Contains(n, ctl{t: n.T, url: n.h.url}.run("queue", "show", "test:killers-0").out, "crashes: 3")
			assert.Contains(n, ctl{t: n.T, url: n.h.url}.run("queue", "list", "--state", "failing").out, "crashes: 3")
		},
		cure: func(n *night, f admin.Finding) { order(n.T, n.h, f, "discard", "--yes") },
	},
	{
		name: "messages of the queue are dead", check: "dead", severity: admin.Warning, alert: "QueueMessagesDead",
		did: "`outboxctl queue requeue`, when the handler was correct", inject: func(n *night) {
			n.fast.Store(false)
			correct := &n.fast
			n.handles("letters", func() error {
				if !correct.Load() {
					return outbox.Poison(errors.New("no such account"))
				}
				return nil
			})
			storeAll(n, storeOn(n, n.h, quickStore()), items("letters", 2)...)
		},
		cure: func(n *night, f admin.Finding) { n.fast.Store(true); order(n.T, n.h, f, "requeue", "--yes") },
	},
	{
		name: "a handler of the queue has failed for 2 h", check: "failing", severity: admin.Warning,
		evidence: `1 message of the queue keeps failing, topic letters, the oldest written 2h`,
		alert:    "QueueMessagesFailing", did: "the handler was corrected", inject: func(n *night) {
			cfg := quickStore()
			cfg.MaxAttempts = -1
			cfg.Backoff.Func = func(attempt int) time.Duration { // as late as the bank's own
				return time.Duration(max(0, attempt-5)) * time.Minute
			}
			s, closed := storeOn(n, n.h, cfg), errors.New("the bank is closed")
			dispatching(n, s, quickDispatcher(map[string]queue.Handler{"letters": {
				Handle: func(context.Context, *queue.Message) error {
					if n.fast.Load() {
						return nil
					}
					return closed
				},
			}}))
			storeAll(n, s, items("letters", 1)...)
			eventually(n, func() bool {
				return n.h.count(n, "SELECT count(*) FROM inbox_queue WHERE attempts > 5 AND due_at > now()") == 1
			}, "it keeps failing")
			n.h.exec(n, "UPDATE inbox_queue SET first_seen_at = now() - interval '2 hours'")
		},
		cure: func(n *night, _ admin.Finding) {
			n.fast.Store(true)
			n.h.exec(n, "UPDATE inbox_queue SET due_at = now()") // instead of waiting for that
		},
	},
	{
		name: "a consumer's messages are dead", check: "dead", severity: admin.Warning, alert: "InboxMessagesDead",
		did: "`outboxctl inbox redrive`, when the handler was correct", inject: func(n *night) {
			n.forwards(classifyingConfig(), nil) // publishes dead letters and redriven messages
			n.feed = deadInARouter(n, n.h, &n.fast, newMessage("one"), newMessage("two"))
		},
		cure: func(n *night, f admin.Finding) {
			n.fast.Store(true)
			order(n.T, n.h, f, "redrive", "--yes")
			again := sentAgain(n, n.h)
			require.Len(n, again, 2)
			for _, msg := range again {
				require.True(n, n.feed.deliver(n, msg))
				assert.Equal(n, 1, effects(n, n.h, msg))
			}
		},
	},
	{
		name: "a consumer's message has failed for 2 h, and is not redelivered", check: "failing",
		severity: admin.Warning, alert: "InboxMessagesFailing", did: "`outboxctl inbox discard`",
		evidence: `1 message of the inbox keeps failing, consumer shop/book, the oldest for 2h(?s:.*)bookings`,
		inject: func(n *night) {
			n.h.exec(n, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error) VALUES
				('shop/book', 'b', now() - interval '2 seconds', 1, 'a moment ago'),
				('shop/book', 'revived', now() - interval '5 minutes', 0, 'before it was requeued')`)
			f := newFeed()
			startRouter(n, func(r *message.Router) {
				r.AddMiddleware(stackFor(n, newOutboxPublisher(n, n.h), middleware.StackConfig{}, nil)...)
				r.AddConsumerHandler("book", "orders", f, func(*message.Message) error {
					return errors.New(`no relation "bookings"`)
				})
			})
			msg := newMessage("order")
			for range 4 {
				require.False(n, f.deliver(n, msg.Copy()))
			}
			n.h.exec(n, "UPDATE inbox SET received_at = now() - interval '2 hours' WHERE message_id = $1", msg.UUID)
		},
		cure: func(n *night, f admin.Finding) { order(n.T, n.h, f, "discard", "--yes") },
	},
}

// role creates a login role with all of the owner's rights, and a handle with it.
func (n *night) role(name string) (string, handle) {
	n.Helper()
	at, err := url.Parse(n.h.url)
	require.NoError(n, err)
	name = strings.TrimPrefix(at.Path, "/") + "_" + name
	n.h.exec(n, `CREATE ROLE "`+name+`" LOGIN IN ROLE pg_monitor`)
	n.h.exec(n, `GRANT ALL ON ALL TABLES IN SCHEMA public TO "`+name+`"`)
	n.h.exec(n, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO "`+name+`"`)
	n.Cleanup(func() {
		_, _ = n.h.pool.Exec(context.Background(), `DROP OWNED BY "`+name+`"`)
		_, _ = n.h.pool.Exec(context.Background(), `DROP ROLE "`+name+`"`)
	})
	own := *at
	own.User = url.User(name)
	return name, newPgxHandle(n, own.String())
}

var faultsOfTheServer = []fault{
	{
		name: "a session is idle in a transaction", check: "idle_transaction", severity: admin.Info, always: true,
		evidence: `\("culprit"\), idle in transaction(?s:.*)RowShareLock`,
		inject: func(n *night) {
			n.h.publish(n, "orders", "", "1")
			begin(n, n.h, "BEGIN", "SELECT FROM outbox FOR UPDATE")
			n.world = startForwarder(n, n.h, classifyingConfig())
			n.arrives(n, "1")
			assert.Equal(n, 0, n.h.states(n, "true")["done"], "it cannot be settled")
		},
	},
	{
		name: "a table is locked by hand", check: "table_lock", severity: admin.Warning, always: true,
		inject: func(n *night) { begin(n, n.h, "BEGIN", "LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE") },
	},
	{
		name: "a prepared transaction was forgotten", check: "prepared_transactions", severity: admin.Info, always: true,
		inject: func(n *night) {
			gid := "o''clock " + strings.TrimPrefix(role(n.h), "/")
			begin(n, n.h, "BEGIN", "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')",
				"PREPARE TRANSACTION '"+gid+"'")
			n.Cleanup(func() { _, _ = n.h.pool.Exec(context.Background(), "ROLLBACK PREPARED '"+gid+"'") })
		},
	},
	{
		name: "an index is missing", check: "schema", severity: admin.Critical, inject: func(n *night) {
			n.h.exec(n, "DROP INDEX outbox_ready")
			assert.Equal(n, http.StatusOK, newSite(n, n.h, ui.Access{}).get("").status)
		},
	},
	{
		name: "a right was taken from the role of the forwarder", check: "privileges", severity: admin.Critical,
		evidence: `"outbox" denies DELETE to role "\w+_forwarder"`, inject: func(n *night) {
			name, h := n.role("forwarder")
			n.world = startForwarder(n, h, classifyingConfig())
			n.h.exec(n, `REVOKE DELETE ON outbox FROM "`+name+`"`)
		},
	},
	{
		name: "a right was taken from the role of the writer", check: "privileges", severity: admin.Critical,
		evidence: `may write messages, but lacks USAGE`, inject: func(n *night) {
			name, h := n.role("writer")
			n.h.exec(n, `REVOKE USAGE ON SEQUENCE outbox_id_seq FROM "`+name+`"`)
			n.world = startForwarder(n, n.h, classifyingConfig())
			n.mend = func() { h.publish(n, "orders", "", "1"); n.arrives(n, "1") }
		},
		cure: func(n *night, f admin.Finding) { n.runs(f); n.mend() },
	},
	{
		name: "the role of the forwarder has a statement_timeout of 100 ms", check: "statement_timeout",
		severity: admin.Warning, always: true, inject: func(n *night) {
			name, h := n.role("forwarder")
			n.world = startForwarder(n, h, classifyingConfig()) // its start takes longer than that on a busy machine
			n.h.publish(n, "orders", "", "1")
			n.arrives(n, "1")
			n.h.exec(n, `ALTER ROLE "`+name+`" SET statement_timeout = '100ms'`)
		},
	},
	{
		name: "a transaction writes messages and goes on for long", check: "long_transaction", severity: admin.Info,
		evidence: "active(?s:.*)RowExclusiveLock", always: true, inject: func(n *night) {
			conn := begin(n, n.h, "BEGIN", "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')")
			ended := make(chan error, 1)
			go func() { _, err := conn.Exec(n.Context(), "SELECT pg_sleep(600)"); ended <- err }()
			n.Cleanup(func() { assert.Error(n, <-ended) })
		},
	},
}
