package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestStore goes once through the life of messages.
func TestStore(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		ctx := t.Context()
		store := newStore(t, h, queue.StoreConfig{})
		owner, other := queue.NewOwner(), queue.NewOwner()

		a, b, c, d := item("shop", "a"), item("shop", "b"), item("shop", "c"), item("shop", "d")
		a.Metadata, a.Key, a.Hash = map[string]string{"x": "ü"}, "key", queue.SHA256(a.Payload)
		d.DueAt = time.Now().Add(time.Hour)
		stored, err := store.Enqueue(ctx, c, a, b, d)
		require.NoError(t, err)
		for i, it := range []queue.Item{c, a, b, d} {
			assert.Equal(t, queue.EnqueueResult{ID: it.ID, Result: queue.New}, stored[i])
		}

		msgs := claimed(t, store, owner, 10)
		require.Len(t, msgs, 3)
		assert.Equal(t, []queue.ID{c.ID, a.ID, b.ID}, []queue.ID{msgs[0].ID, msgs[1].ID, msgs[2].ID})
		assert.Equal(t, a, msgs[1].Item)
		assert.Equal(t, queue.Processing, msgs[1].State)
		assert.Empty(t, claimed(t, store, other, 10))

		n, err := store.Ack(ctx, other, a.ID)
		require.NoError(t, err)
		assert.Zero(t, n)
		n, err = store.Ack(ctx, owner, a.ID, a.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		n, err = store.Abandon(ctx, queue.Abandon{Owner: owner, Err: "later", Delay: time.Millisecond}, b.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		n, err = store.Fail(ctx, queue.Fail{Owner: owner, Reason: "never"}, c.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)

		eventually(t, func() bool { return len(claimed(t, store, other, 1)) == 1 }, "the abandoned one comes back")
		ours, err := store.Renew(ctx, queue.Renew{Owner: other, LeaseTTL: time.Minute}, a.ID, b.ID, c.ID)
		require.NoError(t, err)
		assert.Equal(t, []queue.ID{b.ID}, ours)
		n, err = store.Release(ctx, other, b.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		require.Len(t, claimed(t, store, other, 1), 1)

		done := got(t, store, a.ID)
		assert.Equal(t, queue.Done, done.State)
		assert.Empty(t, done.Payload)
		assert.Equal(t, "never", got(t, store, c.ID).LastError)
		_, err = store.Get(ctx, queue.ID{Source: "shop", MessageID: "x"})
		require.ErrorIs(t, err, queue.ErrNotFound)

		a.Hash = queue.SHA256([]byte("other"))
		stored, err = store.Enqueue(ctx, a, b, c, d, item("shop", "e"), item("shop", "e"))
		require.NoError(t, err)
		assert.Equal(t, []queue.EnqueueResult{
			{ID: a.ID, Result: queue.AlreadyDone, Mismatch: true}, {ID: b.ID, Result: queue.Busy},
			{ID: c.ID, Result: queue.Updated},
			{ID: d.ID, Result: queue.Updated}, {ID: item("shop", "e").ID, Result: queue.New},
			{ID: item("shop", "e").ID, Result: queue.Updated},
		}, stored)

		processed, err := store.AlreadyProcessed(ctx, a.ID, nil)
		require.NoError(t, err)
		assert.True(t, processed)
		processed, err = store.AlreadyProcessed(ctx, queue.ID{Source: "shop", MessageID: "new"}, nil)
		require.NoError(t, err)
		assert.False(t, processed)
		assert.Equal(t, queue.Seen, got(t, store, queue.ID{Source: "shop", MessageID: "new"}).State)
	})
}
