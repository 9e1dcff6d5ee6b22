package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

func (x ibx) abandon(t testing.TB) func(owner queue.Owner, ids ...queue.ID) (int, error) {
	return func(owner queue.Owner, ids ...queue.ID) (int, error) {
		return x.store.Abandon(t.Context(), owner, "why", 0, ids...)
	}
}

func (x ibx) fail(t testing.TB) func(owner queue.Owner, ids ...queue.ID) (int, error) {
	return func(owner queue.Owner, ids ...queue.ID) (int, error) {
		return x.store.Fail(t.Context(), owner, "why", ids...)
	}
}

// waits returns bounds, in seconds, of a message's wait after do. They differ by the duration of do on the database's
// clock.
func (x ibx) waits(t testing.TB, id string, do func()) (least, most float64) {
	t.Helper()
	before := x.now(t)
	do()
	due := x.row(t, id).DueAt
	return due.Sub(x.now(t)).Seconds(), due.Sub(before).Seconds()
}

// reap reaps expired leases.
func (x ibx) reap(t testing.TB) {
	t.Helper()
	_, err := x.store.ReapExpired(t.Context())
	require.NoError(t, err)
}

var ibxAbandons = []requirement{
	{number: 50, text: "Abandon ends the lease", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		settles(t, 1)(x.abandon(t)(x.owner, x.id("a")))
		x.nobodys(t, "a")
		assert.Equal(t, queue.Processing, x.get(t, "a").State)
	}},
	{number: 51, text: "Abandon charges an attempt", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		settles(t, 1)(x.abandon(t)(x.owner, x.id("a")))
		assert.Equal(t, 1, x.get(t, "a").Attempts)
	}},
	{number: 52, text: "the wait grows with the attempts", verdict: held, test: func(t *testing.T, x ibx) {
		x.put(t, x.item("a"))
		for i, least := range []float64{1.5, 3.1, 6.3, 12.7} {
			require.Len(t, x.claim(t, x.owner, 1), 1, "attempt %d", i)
			shortest, longest := x.waits(t, "a", func() { settles(t, 1)(x.abandon(t)(x.owner, x.id("a"))) })
			assert.Greater(t, longest, least)
			assert.Less(t, shortest, 2*least)
			x.due(t, "a")
		}
	}},
	{number: 53, text: "a given delay is used", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		least, most := x.waits(t, "a", func() {
			settles(t, 1)(x.store.Abandon(t.Context(), x.owner, "", time.Hour, x.id("a")))
		})
		assert.LessOrEqual(t, least, 3600.0)
		assert.GreaterOrEqual(t, most, 3600.0)
	}},
	{number: 54, text: "only the owner can Abandon", verdict: held, test: func(t *testing.T, x ibx) {
		x.othersKeepOut(t, x.abandon(t))
	}},
	{number: 55, text: "Abandon ignores unknown messages and those of others", verdict: held,
		test: func(t *testing.T, x ibx) {
			x.othersKeepOut(t, x.abandon(t))
		}},
	{number: 56, text: "an abandoned message is claimed again after its wait", verdict: held,
		test: func(t *testing.T, x ibx) {
			x.has(t, "a")
			settles(t, 1)(x.store.Abandon(t.Context(), x.owner, "", 10*time.Millisecond, x.id("a")))
			eventually(t, func() bool { return len(x.claim(t, x.owner, 1)) == 1 }, "the message is claimed again")
		}},
	{number: 57, text: "Abandon stores the error", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		settles(t, 1)(x.abandon(t)(x.owner, x.id("a")))
		assert.Equal(t, "why", x.get(t, "a").LastError)
		x.due(t, "a")
		require.Len(t, x.claim(t, x.owner, 1), 1)
		settles(t, 1)(x.store.Abandon(t.Context(), x.owner, "", 0, x.id("a")))
		assert.Equal(t, "why", x.get(t, "a").LastError, "an empty text counts as none")
	}},
	{number: 58, text: "a delay must be positive", verdict: differs, why: noExceptions +
		" Zero means unspecified.",
		test: func(t *testing.T, x ibx) {
			x.has(t, "a")
			_, err := x.store.Abandon(t.Context(), x.owner, "", -time.Second, x.id("a"))
			invalid(t, err, "the delay of Abandon is -1s")
		}},
	{
		number: 59, text: "Abandon without IDs does nothing", verdict: differs, why: noNull,
		test: func(t *testing.T, x ibx) { x.takesNone(t, x.abandon(t)) },
	},
}

var ibxFailures = []requirement{
	{number: 60, text: "Fail marks messages dead", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		settles(t, 1)(x.fail(t)(x.owner, x.id("a")))
		assert.Equal(t, queue.Dead, x.get(t, "a").State)
	}},
	{number: 61, text: "Fail stores the reason", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		settles(t, 1)(x.fail(t)(x.owner, x.id("a")))
		assert.Equal(t, "why", x.get(t, "a").LastError)
	}},
	{number: 62, text: "only the owner can Fail", verdict: held, test: func(t *testing.T, x ibx) {
		x.othersKeepOut(t, x.fail(t))
	}},
	{number: 63, text: "Fail ignores unknown messages and those of others", verdict: held,
		test: func(t *testing.T, x ibx) {
			x.othersKeepOut(t, x.fail(t))
		}},
	{number: 64, text: "a failed message is not claimed again", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		settles(t, 1)(x.fail(t)(x.owner, x.id("a")))
		assert.Empty(t, x.claim(t, x.owner, 10))
	}},
	{number: 65, text: "Fail ends the lease", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		settles(t, 1)(x.fail(t)(x.owner, x.id("a")))
		x.nobodys(t, "a")
	}},
	{
		number: 66, text: "Fail without IDs does nothing", verdict: differs, why: noNull,
		test: func(t *testing.T, x ibx) { x.takesNone(t, x.fail(t)) },
	},
	{
		number: 67, text: "Fail refuses a null reason", verdict: notApplicable,
		why: "A Go string is never null, and an empty reason is allowed (5.1.2).",
	},
}

var ibxReaping = []requirement{
	{number: 68, text: "ReapExpired finds every expired lease", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "fresh")
		x.has(t, "due")
		settles(t, 1)(x.abandon(t)(x.owner, x.id("due")))
		x.due(t, "due")
		require.Len(t, x.claim(t, x.owner, 1), 1)
		x.has(t, "kept")
		x.lapse(t, "fresh")
		x.lapse(t, "due")
		x.reap(t)
		assert.Equal(t, 1, x.row(t, "fresh").Crashes)
		assert.Equal(t, 1, x.row(t, "due").Crashes)
		assert.Equal(t, x.owner.String(), x.row(t, "kept").Owner)
	}},
	{number: 69, text: "ReapExpired ends those leases", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		x.lapse(t, "a")
		x.reap(t)
		x.nobodys(t, "a")
	}},
	{number: 70, text: "a reaped message can be claimed after its wait", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		x.lapse(t, "a")
		_, most := x.waits(t, "a", func() { x.reap(t) })
		assert.Greater(t, most, 1.5)
		assert.Equal(t, 1, x.get(t, "a").Attempts)
		x.due(t, "a")
		assert.Len(t, x.claim(t, x.owner, 1), 1)
	}},
	{number: 71, text: "ReapExpired ignores done and dead messages", verdict: held, test: func(t *testing.T, x ibx) {
		for _, id := range []string{"done", "dead"} {
			x.has(t, id)
			x.change(t, id, func(q *ibxRow) { q.State, q.LockedUntil = id, x.now(t).Add(-time.Hour) })
			before := x.row(t, id)
			x.reap(t)
			assert.Equal(t, before, x.row(t, id))
		}
	}},
	{number: 72, text: "leases are reaped periodically", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		x.lapse(t, "a")
		eventually(t, func() bool { x.claim(t, x.owner, 1); return x.get(t, "a").Attempts == 1 },
			"a Claim reaps now and then")
	}},
}

var ibxRetries = []requirement{
	{number: 80, text: "the wait after failures grows exponentially", verdict: held, shownBy: "TestBackoffOfMessages"},
	{number: 81, text: "by default it is 2^attempt seconds and at most 60", verdict: differs,
		why:     "With a jitter of 20% either way, so that messages that failed together do not return together.",
		shownBy: "TestBackoffOfMessages"},
	{number: 82, text: "the wait can be customized", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		store := x.with(t, queue.StoreConfig{Backoff: outbox.Backoff{Func: func(n int) time.Duration {
			return time.Duration(n) * time.Hour
		}}})
		least, most := x.waits(t, "a", func() {
			settles(t, 1)(store.Abandon(t.Context(), x.owner, "", 0, x.id("a")))
		})
		assert.LessOrEqual(t, least, 3600.0)
		assert.GreaterOrEqual(t, most, 3600.0)
	}},
	{number: 83, text: "after the last attempt a message is dead", verdict: differs,
		why: "Abandon and ReapExpired do this in the statement that charges the last attempt, so nothing can come " +
			"between the count and the death.",
		test: func(t *testing.T, x ibx) {
			store := x.with(t, queue.StoreConfig{MaxAttempts: 2})
			x.has(t, "a")
			settles(t, 1)(store.Abandon(t.Context(), x.owner, "", 0, x.id("a")))
			assert.Equal(t, queue.Processing, x.get(t, "a").State)
			x.due(t, "a")
			require.Len(t, x.claim(t, x.owner, 1), 1)
			settles(t, 1)(store.Abandon(t.Context(), x.owner, "", 0, x.id("a")))
			assert.Equal(t, queue.Dead, x.get(t, "a").State)

			x.has(t, "b")
			x.change(t, "b", func(q *ibxRow) { q.Attempts = 1 })
			x.lapse(t, "b")
			_, err := store.ReapExpired(t.Context())
			require.NoError(t, err)
			assert.Equal(t, queue.Dead, x.get(t, "b").State)
			assert.Equal(t, 2, x.get(t, "b").Attempts)
		}},
	{number: 84, text: "the number of attempts is configurable and 10 by default", verdict: held, test: func(
		t *testing.T, x ibx,
	) {
		x.has(t, "a")
		x.has(t, "b")
		x.change(t, "a", func(q *ibxRow) { q.Attempts = 8 })
		for _, alive := range []queue.State{queue.Processing, queue.Dead} {
			settles(t, 1)(x.abandon(t)(x.owner, x.id("a")))
			assert.Equal(t, alive, x.get(t, "a").State)
			x.due(t, "a")
			x.claim(t, x.owner, 1)
		}
		x.change(t, "b", func(q *ibxRow) { q.Attempts = 1_000_000 })
		settles(t, 1)(x.with(t, queue.StoreConfig{MaxAttempts: -1}).Abandon(t.Context(), x.owner, "", 0,
			x.id("b")))
		assert.Equal(t, queue.Processing, x.get(t, "b").State)
	}},
}
