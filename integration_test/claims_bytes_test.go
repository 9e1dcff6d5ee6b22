package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimHasRoomForPayloads: a claim returns payloads up to its byte limit, or one larger message alone, and does not
// lose the rest.
func TestClaimHasRoomForPayloads(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		store := newStore(t, h, queue.StoreConfig{})
		const n, size = 40, 10_000
		items := make([]queue.Item, n)
		for i := range items {
			items[i] = item("shop", fmt.Sprint(i))
			items[i].Payload = bytes.Repeat([]byte{'x'}, size)
			switch {
			case i%10 == 0:
				items[i].Payload = bytes.Repeat([]byte{'x'}, 8*size) // exceeds the limit
			case i%3 == 0:
				items[i].DueAt = time.Now().Add(-time.Minute)
			}
		}
		_, err := store.Enqueue(t.Context(), items...)
		require.NoError(t, err)
		const room = 5*size + size/2
		owner, came := queue.NewOwner(), map[queue.ID]bool{}
		for looks := 0; len(came) < n; looks++ {
			require.Less(t, looks, 3*n, "%d of %d messages were claimed", len(came), n)
			msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1000, MaxBytes: room})
			require.NoError(t, err)
			total := 0
			for _, msg := range msgs {
				total += len(msg.Payload)
				assert.False(t, came[msg.ID], "%s was claimed twice", msg.ID)
				came[msg.ID] = true
			}
			// Each statement may return one message regardless: the last one, if the limit was not reached before.
			assert.LessOrEqual(t, total, room+8*size, "%d messages", len(msgs))
		}
		_, err = store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1, MaxBytes: -1})
		assert.ErrorIs(t, err, queue.ErrInvalid)
	})
}

// TestDispatcherHasRoomForPayloads: payloads of messages in flight, expired ones included, exceed MaxBytes by at most
// one message; and all are handled.
func TestDispatcherHasRoomForPayloads(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, quickStore())
	const n, size, room = 60, 100_000, 450_000
	all := items("orders", n)
	for i := range all {
		all[i].Payload = bytes.Repeat([]byte{'x'}, size)
		if i%2 == 0 {
			all[i].ExpiresAt = time.Now().Add(time.Second)
		}
	}
	storeAll(t, store, all...)
	eventually(t, func() bool {
		return h.count(t, "SELECT count(*) FROM inbox_queue WHERE expires_at < now()") == n/2
	}, "half of them expire")
	var inHand, most, handled, dead atomic.Int64
	goOn := make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	took := func(msg *queue.Message) func() {
		now := inHand.Add(int64(len(msg.Payload)))
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		<-goOn
		return func() { inHand.Add(-int64(len(msg.Payload))) }
	}
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(_ context.Context, msg *queue.Message) error {
		defer took(msg)()
		handled.Add(1)
		return nil
	}}})
	cfg.MaxBytes, cfg.Concurrency = room, 50
	cfg.OnDead = func(_ context.Context, msg *queue.Message, _ error) error {
		defer took(msg)()
		dead.Add(1)
		return nil
	}
	dispatching(t, store, cfg)
	defer release()
	eventually(t, func() bool { return inHand.Load() >= room }, "the byte limit is reached")
	release()
	eventually(t, func() bool { return handled.Load() == n/2 && dead.Load() == n/2 }, "all are handled or buried")
	assert.LessOrEqual(t, most.Load(), int64(room+size))
}

// TestATopicWithALimitHasItsTurn: a topic with a backlog whose slots were all in use is claimed alongside limited
// topics that always have more messages than free slots and never reach their limits.
func TestATopicWithALimitHasItsTurn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bound              string
		size, room, places int
	}{
		{bound: "bytes", size: 10_000, room: 20_000, places: 50},
		{bound: "places", size: 1, places: 4},
	} {
		t.Run(c.bound, func(t *testing.T) {
			if c.bound == "bytes" {
				extended(t)
			}
			t.Parallel()
			h := newPgxHandle(t, newMigratedDatabase(t))
			store := storeOn(t, h, quickStore())
			const n, few = 400, 5
			storeAll(t, store, items("small", few)...)
			var others []queue.Item
			one, other := items("large", n), items("many", n)
			for i := range n {
				one[i].Payload, other[i].Payload = bytes.Repeat([]byte{'x'}, c.size), bytes.Repeat([]byte{'x'}, c.size)
				others = append(others, one[i], other[i])
			}
			storeAll(t, store, others...)
			var large, small, before atomic.Int64
			count := func(context.Context, *queue.Message) error { large.Add(1); return nil }
			cfg := quickDispatcher(map[string]queue.Handler{
				"large": {Handle: count, Concurrency: c.places - 1}, "many": {Handle: count, Concurrency: c.places - 1},
				"small": {Concurrency: 1, Handle: func(context.Context, *queue.Message) error {
					if small.Add(1) == few {
						before.Store(large.Load())
					}
					return nil
				}},
			})
			cfg.MaxBytes, cfg.Concurrency = c.room, c.places
			dispatching(t, store, cfg)
			eventually(t, func() bool { return small.Load() == few && large.Load() == 2*n }, "all are handled")
			assert.Less(t, before.Load(), int64(n), "handled before the last small one")
		})
	}
}
