package integration_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
	"github.com/millrace-go/watermill-outbox/schema"
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
	{number: 102, text: "each call is one transaction", verdict: inOtherWords,
		why: "In a transaction of yours all of them. Else AlreadyProcessed, Mark..., Enqueue, Renew and Get. " +
			"The batches of ReapExpired and Clean are " +
			"transactions of their own, and so are the statements of Claim, which reaps first, and of Ack, Abandon, " +
			"Fail and Release, which look once more for rows " +
			"that a renewal has moved: what one of them changed is changed, whatever becomes of the next.",
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
	{number: 103, text: "claims are isolated from each other", verdict: inOtherWords,
		why:     "At READ COMMITTED, by row locks (FOR UPDATE SKIP LOCKED) that check the row again as it is by then.",
		shownBy: "TestClaimedOnceByMany TestHistoryOfAQueue"},
	{number: 104, text: "deadlocks are retried or returned", verdict: inOtherWords,
		why: "Our own statements lock rows in one order or do not wait. One with statements of yours is returned, " +
			"and one between a batch Enqueue and an ack in a table of a few pages, which is read in another order: " +
			"both can be repeated.",
		shownBy: "TestAckAgainstEnqueue TestExpiredLeaseNoDeadlock TestOverlappingBatches"},
	{number: 105, text: "several processes work on one table", verdict: held,
		shownBy: "TestStoppedProcessChangesNothing TestDispatchersUnderFire"},
	{
		number: 106, text: "a message is never claimed twice at the same time", verdict: held,
		shownBy: "TestClaimedOnceByMany TestHistoryOfAQueue TestStaleOwnerChangesNothing TestStoppedProcessChangesNothing",
	},
}

const tooManyLines = "At level debug: a line for each message would flood the info level."

var ibxObservability = []requirement{
	{number: 107, text: "checks are logged at debug level", verdict: held, test: func(t *testing.T, x ibx) {
		x.processed(t, "a", nil)
		assert.True(t, x.logs.has("DEBUG", x.name, "a", "done:false"))
	}},
	{number: 108, text: "stored messages are logged at info level", verdict: inOtherWords, why: tooManyLines,
		test: func(t *testing.T, x ibx) {
			x.put(t, x.item("a"))
			assert.True(t, x.logs.has("DEBUG stored", "topic:"+x.name, "source:"+x.name, "message_id:a"))
		}},
	{number: 109, text: "claims are logged at debug level with their number", verdict: held,
		test: func(t *testing.T, x ibx) {
			x.has(t, "a")
			assert.True(t, x.logs.has("DEBUG", "claimed", "messages:1"))
		}, shownBy: "TestDispatcherLogsClaimsForBurial"},
	{
		number: 110, text: "handler calls are logged at info level with topic and message", verdict: inOtherWords,
		why: tooManyLines, shownBy: "TestDispatcherLogs",
	},
	{number: 111, text: "handler errors are logged at error level with the message", verdict: inOtherWords,
		why: "By a Dispatcher: also those that decide nothing any more, because the lease was lost or the process stops, " +
			"but not those of an attempt that " +
			"is repeated at once, after a serialization failure or a deadlock. Behind a Subscriber the Router logs them, " +
			"and the death of a message is logged here.",
		shownBy: "TestDispatcherLogs TestDispatcherLogsErrorsWithoutConsequence TestSubscriberTellsWhatDies"},
	{number: 112, text: "reaping is logged at info level with the number", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		x.lapse(t, "a")
		x.reap(t)
		assert.True(t, x.logs.has("INFO", "reaped", "messages:1"))
	}},
	{number: 113, text: "every line names the database", verdict: inOtherWords,
		why: "Except lines that concern none: of a failed discovery, or of a webhook refused before its store was chosen.",
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

const noDeployment = "Schema changes happen in schema.Migrate, at deployment, or by the migration tool of your " +
	"choice (schema.Files); a Store never creates tables."

var ibxSchema = []requirement{
	{
		number: 114, text: "the schema is created if that is enabled", verdict: inOtherWords, why: noDeployment,
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
		require.NoError(t, schema.Check(t.Context(), x.db))
	}},
}

var ibxLimits = []requirement{
	{number: 118, text: "a payload may be large", verdict: inOtherWords,
		why: "Shown with 20 MB. Postgres' limit is 1 GB for a value and for a message of its protocol, metadata included, " +
			"and a payload is in memory " +
			"several times on both sides. StoreConfig.MaxPayloadBytes sets a lower one; a webhook takes 1 MiB unless " +
			"WebhookConfig.MaxBytes says otherwise.",
		test: func(t *testing.T, x ibx) {
			it := x.item("a")
			it.Payload = make([]byte, 20<<20)
			x.put(t, it)
			assert.Len(t, x.get(t, "a").Payload, len(it.Payload))
			_, err := x.with(t, queue.StoreConfig{MaxPayloadBytes: 100}).Enqueue(t.Context(), it)
			invalid(t, err, "MaxPayloadBytes is 100")
		}},
	{number: 119, text: "a lease of 10 to 300 seconds is best", verdict: inOtherWords,
		why: "30 s is the default. The minimum is 1 s; there is no maximum.", test: func(t *testing.T, x ibx) {
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
	{number: 120, text: "a batch of 1 to 100 is best", verdict: inOtherWords,
		why: "50 is the default of a Dispatcher, which claims no more than its free slots. More than 10,000 are refused.",
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
	{number: 121, text: "thousands of messages a second", verdict: inOtherWords,
		why: "Measured, not promised: docs/reference/performance.md has the figures of make bench " +
			"(queue_dispatch_vs_river), and no test depends on the machine. " +
			"The test shows that no statement scans the whole table.", shownBy: "TestPlansOfQueue"},
	{
		number: 122, text: "claims use indexes", verdict: inOtherWords, why: "On id and due time. An index on the end of " +
			"the lease would cost every claim and every renewal more than it gains.", shownBy: "TestPlansOfQueue",
	},
	{number: 123, text: "stores of many databases are cached", verdict: held, shownBy: "TestStoresOfAFleet"},
	{
		number: 124, text: "polling slows down while there are no messages", verdict: held,
		shownBy: "TestScheduleWaitsLongerWhileThereIsNothing",
	},
	{number: 125, text: "source and message id have an index", verdict: held, shownBy: "TestPlansOfQueue"},
	{number: 126, text: "the role needs SELECT, INSERT, UPDATE and DELETE", verdict: inOtherWords,
		why:     "And USAGE and SELECT on the sequence of the table, and USAGE on its schema: schema.Roles has them as SQL.",
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
	{number: 128, text: "connections may be encrypted", verdict: inOtherWords,
		why:     "The pool is yours, and so is its sslmode. No other connections are made.",
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
	{number: 130, text: "the zero owner is refused everywhere", verdict: inOtherWords, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		var zero queue.Owner
		x.has(t, "a")
		_, err := x.store.Renew(t.Context(), queue.Renew{Owner: zero, LeaseTTL: time.Minute}, x.id("a"))
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
	eventually(t, func() bool { msgs = append(msgs, x.claim(t, x.owner, 10)...); return len(msgs) > 0 }, "it is claimed")
	return msgs
}

var errTakenBack = errors.New("rolled back by the test")
