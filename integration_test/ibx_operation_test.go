package integration_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

var ibxCleanup = []requirement{
	{number: 98, text: "old done messages are deleted", verdict: held, test: func(t *testing.T, x ibx) {
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "old")))
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "new")))
		x.change(t, "old", func(q *ibxRow) { q.DoneAt = q.DoneAt.Add(-31 * 24 * time.Hour) })
		_, err := x.store.Clean(t.Context())
		require.NoError(t, err)
		_, err = x.store.Get(t.Context(), x.id("old"))
		require.ErrorIs(t, err, queue.ErrNotFound)
		assert.Equal(t, queue.Done, x.get(t, "new").State)
	}},
	{
		number: 99, text: "clean-up keeps seen, processing and dead messages", verdict: held,
		shownBy: "TestCleanKeepsUnfinished",
	},
	{number: 100, text: "the retention is configurable", verdict: held, test: func(t *testing.T, x ibx) {
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "a")))
		x.change(t, "a", func(q *ibxRow) { q.DoneAt = q.DoneAt.Add(-time.Hour) })
		for _, retention := range []time.Duration{2 * time.Hour, -1} {
			_, err := x.with(t, queue.StoreConfig{Retention: retention}).Clean(t.Context())
			require.NoError(t, err)
			assert.Equal(t, queue.Done, x.get(t, "a").State)
		}
		_, err := x.with(t, queue.StoreConfig{Retention: time.Minute}).Clean(t.Context())
		require.NoError(t, err)
		_, err = x.store.Get(t.Context(), x.id("a"))
		require.ErrorIs(t, err, queue.ErrNotFound)
	}},
	{number: 101, text: "clean-up works in batches", verdict: held, shownBy: "TestCleanKeepsUnfinished"},
}

var ibxConcurrency = []requirement{
	{number: 102, text: "each call is one transaction", verdict: differs,
		why: "In your transaction, all calls. Otherwise AlreadyProcessed, the Mark methods, Enqueue, Renew and Get are " +
			"one transaction each. Each batch of ReapExpired and Clean is a separate transaction. So is each " +
			"statement of Claim, which reaps first, and of Ack, Abandon, Fail and Release, which check again for rows " +
			"that a renewal has moved: the changes of one statement stay even if the next one fails.",
		test: func(t *testing.T, x ibx) {
			all := make([]queue.Item, 1001) // more than one statement inserts
			for i := range all {
				all[i] = x.item(string(rune(i + 0x4e00)))
				all[i].Payload = nil
			}
			x.exec(t, `alter table inbox_queue add constraint not_this check (source <> 'IBX-102' or message_id <> `+
				`chr(1000 + x'4e00'::int))`)
			defer x.exec(t, `alter table inbox_queue drop constraint not_this`)
			_, err := x.store.Enqueue(t.Context(), all...)
			require.ErrorContains(t, err, "not_this")
			assert.Zero(t, x.count(t, "select count(*) from inbox_queue where source = $1", x.name))
		}},
	{number: 103, text: "claims are isolated from each other", verdict: differs,
		why: "At READ COMMITTED, with row locks (FOR UPDATE SKIP LOCKED), after which the current row is checked " +
			"again.",
		shownBy: "TestClaimedOnceByMany TestHistoryOfAQueue"},
	{number: 104, text: "deadlocks are retried or returned", verdict: differs,
		why: "Our own statements lock rows in one order or do not wait. A deadlock with your own statements is " +
			"returned, and so is one between a batch Enqueue and an ack on a table of a few pages, which is read in " +
			"another order. The calls can be repeated.",
		shownBy: "TestAckAgainstEnqueue TestExpiredLeaseNoDeadlock TestOverlappingBatches"},
	{number: 105, text: "several processes work on one table", verdict: held,
		shownBy: "TestStoppedProcessChangesNothing TestDispatchersUnderFire"},
	{
		number: 106, text: "a message is never claimed twice at the same time", verdict: held,
		shownBy: "TestClaimedOnceByMany TestHistoryOfAQueue TestStaleOwnerChangesNothing TestStoppedProcessChangesNothing",
	},
}

const tooManyLines = "At debug level: a line for each message would flood the info level."

var ibxObservability = []requirement{
	{number: 107, text: "checks are logged at debug level", verdict: held, test: func(t *testing.T, x ibx) {
		x.processed(t, "a", nil)
		assert.True(t, x.logs.has("DEBUG", x.name, "a", "done:false"))
	}},
	{number: 108, text: "stored messages are logged at info level", verdict: differs, why: tooManyLines,
		test: func(t *testing.T, x ibx) {
			x.put(t, x.item("a"))
			assert.True(t, x.logs.has("DEBUG stored", "topic:"+x.name, "source:"+x.name, "message_id:a"))
		}},
	{number: 109, text: "claims are logged at debug level with their number", verdict: held,
		test: func(t *testing.T, x ibx) {
			x.has(t, "a")
			assert.True(t, x.logs.has("DEBUG", "claimed", "messages:1"))
		}, shownBy: "TestDispatcherLogsClaimsOfExpiredMessages"},
	{
		number: 110, text: "handler calls are logged at info level with topic and message", verdict: differs,
		why: tooManyLines, shownBy: "TestDispatcherLogs",
	},
	{number: 111, text: "handler errors are logged at error level with the message", verdict: differs,
		why: "A Dispatcher logs them, including errors without effect because the lease was lost or the process is " +
			"stopping, but not errors of an attempt that is repeated immediately after a serialization failure or a " +
			"deadlock. With a Subscriber, the Router logs errors, and the queue logs the death of a message.",
		shownBy: "TestDispatcherLogs TestDispatcherLogsErrorsWithoutConsequence TestSubscriberTellsWhatDies"},
	{number: 112, text: "reaping is logged at info level with the number", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		x.lapse(t, "a")
		x.reap(t)
		assert.True(t, x.logs.has("INFO", "reaped", "messages:1"))
	}},
	{number: 113, text: "every line names the database", verdict: differs,
		why: "Except lines that concern no database: a failed discovery, or a webhook refused before its store was " +
			"chosen.",
		test: func(t *testing.T, x ibx) {
			x.processed(t, "a", []byte("x"))
			x.processed(t, "a", []byte("y"))
			x.has(t, "b")
			x.lapse(t, "b")
			x.reap(t)
			for _, line := range x.logs.lines {
				assert.Contains(t, line, "db:"+x.db.Name())
			}
			assert.Greater(t, len(x.logs.lines), 4)
		}, shownBy: "TestStoresOfAFleet TestWebhookOfTenants"},
}

const noDeployment = "schema.Migrate changes the schema at deployment, or your own migration tool with " +
	"schema.Files. A Store never creates tables."

var ibxSchema = []requirement{
	{
		number: 114, text: "the schema is created if that is enabled", verdict: differs, why: noDeployment,
		shownBy: "TestMigrateIsIdempotent",
	},
	{number: 115, text: "otherwise the schema is assumed to exist", verdict: held, test: func(t *testing.T, x ibx) {
		h := x.handle.with(t, sqltext.Tables{Queue: "nowhere"})
		store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
		require.NoError(t, err)
		_, err = store.Enqueue(t.Context(), x.item("a"))
		require.ErrorContains(t, err, "schema.Migrate")
		assert.Zero(t, x.count(t, "select count(*) from pg_class where relname = 'nowhere'"))
	}},
	{number: 116, text: "deploying the schema twice is not an error", verdict: held, shownBy: "TestMigrateIsIdempotent"},
	{number: 117, text: "the schema has the table and its indexes", verdict: held, test: func(
		t *testing.T, x ibx,
	) {
		require.NoError(t, checkSchema(t.Context(), x.db))
	}},
}

var ibxLimits = []requirement{
	{number: 118, text: "a payload may be large", verdict: differs,
		why: "Shown with 20 MB. Postgres limits a value, and a message of its protocol including metadata, to 1 GB, " +
			"and a payload is in memory several times on both sides. StoreConfig.MaxPayloadBytes sets a lower limit; " +
			"a webhook accepts 1 MiB unless WebhookConfig.MaxBytes is set.",
		test: func(t *testing.T, x ibx) {
			it := x.item("a")
			it.Payload = make([]byte, 20<<20)
			x.put(t, it)
			assert.Len(t, x.get(t, "a").Payload, len(it.Payload))
			_, err := x.with(t, queue.StoreConfig{MaxPayloadBytes: 100}).Enqueue(t.Context(), it)
			invalid(t, err, "MaxPayloadBytes is 100")
		}},
	{number: 119, text: "a lease of 10 to 300 seconds is best", verdict: differs,
		why: "The default is 30 s, the minimum 1 s. There is no maximum.", test: func(t *testing.T, x ibx) {
			for i, lease := range []time.Duration{time.Second, 10 * time.Second, 300 * time.Second, time.Hour} {
				id := x.item(string(rune('a' + i)))
				x.put(t, id)
				msgs, err := x.claimWith(t, func(c *queue.Claim) { c.LeaseTTL = lease })
				require.NoError(t, err)
				require.Len(t, msgs, 1)
				assert.InDelta(t, lease.Seconds(), x.row(t, id.MessageID).LockedUntil.Sub(x.now(t)).Seconds(), 30)
			}
			_, err := x.claimWith(t, func(c *queue.Claim) { c.LeaseTTL = time.Second - 1 })
			invalid(t, err, "at least 1s")
		}},
	{number: 120, text: "a batch of 1 to 100 is best", verdict: differs,
		why: "The default of a Dispatcher is 50, and it claims no more than its free slots. More than 10,000 is an " +
			"error.",
		test: func(t *testing.T, x ibx) {
			for i, limit := range []int{1, 100, 10_000} {
				x.put(t, x.item(string(rune('a'+i))))
				msgs, err := x.claimWith(t, func(c *queue.Claim) { c.Limit = limit })
				require.NoError(t, err)
				require.Len(t, msgs, 1)
			}
			_, err := x.claimWith(t, func(c *queue.Claim) { c.Limit = 10_001 })
			invalid(t, err, "10000")
		}},
	{number: 121, text: "thousands of messages a second", verdict: differs,
		why: "Measured, not promised: docs/reference/performance.md has the figures of make bench " +
			"(queue_dispatch_vs_river). No test depends on the machine's speed. The test shows that no statement " +
			"scans the whole table.", shownBy: "TestPlansOfQueue"},
	{
		number: 122, text: "claims use indexes", verdict: differs,
		why:     "On id and due time. An index on the end of the lease would cost each claim and renewal more than it saves.",
		shownBy: "TestPlansOfQueue",
	},
	{number: 123, text: "stores of many databases are cached", verdict: held, shownBy: "TestStoresOfAFleet"},
	{
		number: 124, text: "polling slows down while there are no messages", verdict: held,
		shownBy: "TestScheduleWaitsLongerWhileThereIsNothing",
	},
	{number: 125, text: "source and message id have an index", verdict: held, shownBy: "TestPlansOfQueue"},
	{number: 126, text: "the role needs SELECT, INSERT, UPDATE and DELETE", verdict: differs,
		why: "It also needs USAGE and SELECT on the table's sequence, and USAGE on its schema. schema.Roles returns " +
			"the grants as SQL.",
		shownBy: "TestRoleOfTheQueue"},
	{number: 127, text: "no payload is logged", verdict: held, test: func(t *testing.T, x ibx) {
		it := x.item("a")
		it.Payload, it.Metadata = []byte("canary"), map[string]string{"k": "canary"}
		x.put(t, it)
		x.put(t, it)
		require.Len(t, x.claimDue(t), 1)
		settles(t, 1)(x.abandon(t)(x.owner, it.ID))
		it.Topic = ""
		_, err := x.store.Enqueue(t.Context(), it)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "canary")
		assert.False(t, x.logs.has("", "canary"))
		assert.True(t, x.logs.has("DEBUG stored"))
	}},
	{number: 128, text: "connections may be encrypted", verdict: differs,
		why:     "The pool and its sslmode are yours. The queue makes no other connections.",
		shownBy: "TestQueueOverEncryptedConnections"},
	{number: 129, text: "content hashes are cryptographic", verdict: held, test: func(t *testing.T, x ibx) {
		_, err := x.with(t, queue.StoreConfig{HashContent: true}).Enqueue(t.Context(), x.item("a"))
		require.NoError(t, err)
		assert.Equal(t, queue.SHA256([]byte("payload of a")), x.get(t, "a").Hash)
		assert.Len(t, x.get(t, "a").Hash, 32)
		other := x.item("a")
		other.Payload = []byte("other")
		stored, err := x.with(t, queue.StoreConfig{HashContent: true}).Enqueue(t.Context(), other)
		require.NoError(t, err)
		assert.True(t, stored[0].Mismatch)
	}},
	{number: 130, text: "the zero owner is refused everywhere", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		var zero queue.Owner
		x.has(t, "a")
		_, err := x.store.Renew(t.Context(), zero, time.Minute, x.id("a"))
		invalid(t, err, "Owner")
		release := func(owner queue.Owner, ids ...queue.ID) (int, error) {
			return x.store.Release(t.Context(), owner, ids...)
		}
		for _, call := range []func(queue.Owner, ...queue.ID) (int, error){x.ack(t), x.abandon(t), x.fail(t), release} {
			n, err := call(zero, x.id("a"))
			invalid(t, err, "Owner")
			assert.Zero(t, n)
		}
	}},
}

// claimDue claims messages that were stored twice, which gives them a due time.
func (x ibx) claimDue(t testing.TB) (msgs []queue.Message) {
	t.Helper()
	eventually(t, func() bool { msgs = append(msgs, x.claim(t, x.owner, 10)...); return len(msgs) > 0 }, "claimed")
	return msgs
}

var errTakenBack = errors.New("rolled back by the test")
