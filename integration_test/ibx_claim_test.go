package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// claimWith claims with a modified valid request.
func (x ibx) claimWith(t testing.TB, change func(c *queue.Claim)) ([]queue.Message, error) {
	t.Helper()
	c := queue.Claim{Owner: x.owner, LeaseTTL: time.Minute, Limit: 10, Topics: []string{x.name}}
	change(&c)
	return x.store.Claim(t.Context(), c)
}

var ibxClaiming = []requirement{
	{number: 30, text: "Claim takes and locks messages atomically", verdict: held, test: func(t *testing.T, x ibx) {
		var all []queue.Item
		for i := range 40 {
			all = append(all, x.item(string(rune('a'+i))))
		}
		x.put(t, all...)
		got := make(chan []queue.Message, 8)
		for range 8 {
			go func() {
				msgs, err := x.store.Claim(t.Context(), queue.Claim{
					Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 5, Topics: []string{x.name},
				})
				assert.NoError(t, err)
				got <- msgs
			}()
		}
		seen := map[queue.ID]bool{}
		for range 8 {
			for _, msg := range <-got {
				assert.False(t, seen[msg.ID], "%v was claimed twice", msg.ID)
				seen[msg.ID] = true
			}
		}
		assert.NotEmpty(t, seen)
	}},
	{number: 31, text: "Claim returns only messages in state processing", verdict: held, test: func(t *testing.T, x ibx) {
		x.processed(t, "seen", nil)
		x.change(t, "seen", func(q *ibxRow) { q.Topic = x.name })
		assert.Empty(t, x.claim(t, x.owner, 10))
	}},
	{number: 32, text: "Claim returns only due messages", verdict: held, test: func(t *testing.T, x ibx) {
		it := x.item("a")
		it.DueAt = time.Now().Add(time.Hour)
		x.put(t, it, x.item("b"))
		msgs := x.claim(t, x.owner, 10)
		require.Len(t, msgs, 1)
		assert.Equal(t, x.id("b"), msgs[0].ID)
	}},
	{number: 33, text: "Claim returns only messages without an owner", verdict: differs,
		why: "A message with an expired lease first loses its owner and is charged an attempt (Claim does this once a " +
			"second, ReapExpired immediately). It then waits as after any failure (IBX-070). Otherwise a message that " +
			"kills its handlers would pass from one to the next forever.",
		test: func(t *testing.T, x ibx) {
			x.has(t, "a")
			assert.Empty(t, x.claim(t, queue.NewOwner(), 10))
			x.lapse(t, "a")
			_, err := x.patient(t).ReapExpired(t.Context())
			require.NoError(t, err)
			assert.Empty(t, x.claim(t, queue.NewOwner(), 10), "the message waits")
			assert.Equal(t, 1, x.get(t, "a").Attempts)
			x.due(t, "a")
			assert.Len(t, x.claim(t, queue.NewOwner(), 10), 1)
		}},
	{number: 34, text: "Claim sets the end of the lease", verdict: held, test: func(t *testing.T, x ibx) {
		before := x.now(t)
		x.has(t, "a")
		lease := x.row(t, "a").LockedUntil
		assert.False(t, lease.Before(before.Add(time.Minute)))
		assert.False(t, lease.After(x.now(t).Add(time.Minute)))
	}},
	{number: 35, text: "Claim sets the owner", verdict: held, test: func(t *testing.T, x ibx) {
		x.has(t, "a")
		assert.Equal(t, x.owner.String(), x.row(t, "a").Owner)
	}},
	{number: 36, text: "Claim returns the claimed messages", verdict: differs,
		why: "Whole messages, not only their ids: one round trip less.",
		test: func(t *testing.T, x ibx) {
			x.put(t, x.item("a"))
			msgs := x.claim(t, x.owner, 10)
			require.Len(t, msgs, 1)
			assert.Equal(t, x.get(t, "a"), msgs[0])
		}},
	{number: 37, text: "an empty result is not an error", verdict: held, test: func(t *testing.T, x ibx) {
		assert.Empty(t, x.claim(t, x.owner, 10))
	}},
	{number: 38, text: "Claim returns no done or dead message", verdict: held, test: func(t *testing.T, x ibx) {
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "a")))
		settles(t, 1)(x.store.Fail(t.Context(), x.owner, "why", x.has(t, "b")))
		assert.Empty(t, x.claim(t, x.owner, 10))
	}},
	{number: 39, text: "Claim returns at most the requested number", verdict: held, test: func(t *testing.T, x ibx) {
		x.put(t, x.item("a"), x.item("b"), x.item("c"))
		first := x.claim(t, x.owner, 1)[0].ID
		settles(t, 1)(x.store.Abandon(t.Context(), x.owner, "", 0, first))
		x.due(t, first.MessageID)
		assert.Len(t, x.claim(t, x.owner, 1), 1)
		assert.Len(t, x.claim(t, x.owner, 2), 2)
	}},
	{number: 40, text: "a lease must be positive", verdict: differs, why: noExceptions +
		" The minimum is one second.",
		test: func(t *testing.T, x ibx) {
			for _, ttl := range []time.Duration{0, -time.Second, time.Second - 1} {
				_, err := x.claimWith(t, func(c *queue.Claim) { c.LeaseTTL = ttl })
				invalid(t, err, "Claim.LeaseTTL is "+ttl.String())
			}
		}},
	{number: 41, text: "a batch size must be positive", verdict: differs, why: noExceptions +
		" The maximum is 10,000.",
		test: func(t *testing.T, x ibx) {
			for _, limit := range []int{0, -1, 10_001} {
				_, err := x.claimWith(t, func(c *queue.Claim) { c.Limit = limit })
				invalid(t, err, "Claim.Limit")
			}
		}},
	{number: 42, text: "Claim returns no message that waits after a failure", verdict: held,
		test: func(t *testing.T, x ibx) {
			settles(t, 1)(x.patient(t).Abandon(t.Context(), x.owner, "", 0, x.has(t, "a")))
			assert.Empty(t, x.claim(t, x.owner, 10))
			x.put(t, x.item("a"))
			assert.Empty(t, x.claim(t, x.owner, 10), "a copy does not end the wait")
			x.due(t, "a")
			assert.Len(t, x.claim(t, x.owner, 10), 1)
		}},
	{number: 43, text: "the zero owner is refused", verdict: differs, why: noExceptions, test: func(
		t *testing.T, x ibx,
	) {
		_, err := x.claimWith(t, func(c *queue.Claim) { c.Owner = queue.Owner{} })
		invalid(t, err, "NewOwner()")
	}},
}

// othersKeepOut checks that a call with another owner, or for nonexistent messages, changes nothing.
func (x ibx) othersKeepOut(t *testing.T, call func(owner queue.Owner, ids ...queue.ID) (int, error)) {
	t.Helper()
	x.has(t, "a")
	before := x.row(t, "a")
	settles(t, 0)(call(queue.NewOwner(), x.id("a"), x.id("unknown")))
	assert.Equal(t, before, x.row(t, "a"))
	settles(t, 1)(call(x.owner, x.id("unknown"), x.id("a")))
	settles(t, 0)(call(x.owner, x.id("a")))
}

// takesNone checks that a call without ids does nothing, and that a repeated id counts once.
func (x ibx) takesNone(t *testing.T, call func(owner queue.Owner, ids ...queue.ID) (int, error)) {
	t.Helper()
	settles(t, 0)(call(x.owner))
	x.has(t, "a")
	settles(t, 1)(call(x.owner, x.id("a"), x.id("a")))
}

const noNull = "Variadic IDs cannot be null: a call without IDs does nothing."

var ibxAcks = []requirement{
	{number: 44, text: "Ack marks messages done", verdict: held, test: func(t *testing.T, x ibx) {
		before := x.now(t)
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "a")))
		assert.Equal(t, queue.Done, x.get(t, "a").State)
		assert.True(t, x.row(t, "a").DoneAt.After(before))
	}},
	{number: 45, text: "only the owner can Ack", verdict: held, test: func(t *testing.T, x ibx) {
		x.othersKeepOut(t, x.ack(t))
	}},
	{number: 46, text: "Ack ignores unknown messages and those of others", verdict: held, test: func(t *testing.T, x ibx) {
		x.othersKeepOut(t, x.ack(t))
	}},
	{number: 47, text: "an acked message is not claimed again", verdict: held, test: func(t *testing.T, x ibx) {
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "a")))
		assert.Empty(t, x.claim(t, x.owner, 10))
		_, err := x.store.ReapExpired(t.Context())
		require.NoError(t, err)
		assert.Empty(t, x.claim(t, x.owner, 10))
	}},
	{number: 48, text: "Ack without IDs does nothing", verdict: differs, why: noNull,
		test: func(t *testing.T, x ibx) {
			x.takesNone(t, x.ack(t))
		}},
	{number: 49, text: "Ack ends the lease", verdict: held, test: func(t *testing.T, x ibx) {
		settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.has(t, "a")))
		x.nobodys(t, "a")
	}},
}

func (x ibx) ack(t testing.TB) func(owner queue.Owner, ids ...queue.ID) (int, error) {
	return func(owner queue.Owner, ids ...queue.ID) (int, error) { return x.store.Ack(t.Context(), owner, ids...) }
}
