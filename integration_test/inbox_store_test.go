package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/inbox"
)

// TestStore goes once through the life of messages.
func TestStore(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		ctx := t.Context()
		store := newStore(t, h, inbox.StoreConfig{})
		owner, other := inbox.NewOwner(), inbox.NewOwner()

		a, b, c, d := item("shop", "a"), item("shop", "b"), item("shop", "c"), item("shop", "d")
		a.Metadata, a.Key, a.Hash = map[string]string{"x": "ü"}, "key", inbox.SHA256(a.Payload)
		d.DueAt = time.Now().Add(time.Hour)
		stored, err := store.Enqueue(ctx, c, a, b, d)
		require.NoError(t, err)
		for i, it := range []inbox.Item{c, a, b, d} {
			assert.Equal(t, inbox.Stored{ID: it.ID, Result: inbox.New}, stored[i])
		}

		msgs := claimed(t, store, owner, 10)
		require.Len(t, msgs, 3)
		assert.Equal(t, []inbox.ID{c.ID, a.ID, b.ID}, []inbox.ID{msgs[0].ID, msgs[1].ID, msgs[2].ID})
		assert.Equal(t, a, msgs[1].Item)
		assert.Equal(t, inbox.Processing, msgs[1].State)
		assert.Empty(t, claimed(t, store, other, 10))

		n, err := store.Ack(ctx, other, a.ID)
		require.NoError(t, err)
		assert.Zero(t, n)
		n, err = store.Ack(ctx, owner, a.ID, a.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		n, err = store.Abandon(ctx, inbox.Abandon{Owner: owner, Err: "later", Delay: time.Millisecond}, b.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		n, err = store.Fail(ctx, inbox.Fail{Owner: owner, Reason: "never"}, c.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)

		eventually(t, func() bool { return len(claimed(t, store, other, 1)) == 1 }, "the abandoned one comes back")
		ours, err := store.Renew(ctx, inbox.Renew{Owner: other, LeaseTTL: time.Minute}, a.ID, b.ID, c.ID)
		require.NoError(t, err)
		assert.Equal(t, []inbox.ID{b.ID}, ours)
		n, err = store.Release(ctx, other, b.ID)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		require.Len(t, claimed(t, store, other, 1), 1)

		done := got(t, store, a.ID)
		assert.Equal(t, inbox.Done, done.State)
		assert.Empty(t, done.Payload)
		assert.Equal(t, "never", got(t, store, c.ID).LastError)
		_, err = store.Get(ctx, inbox.ID{Source: "shop", MessageID: "x"})
		require.ErrorIs(t, err, inbox.ErrUnknown)

		a.Hash = inbox.SHA256([]byte("other"))
		stored, err = store.Enqueue(ctx, a, b, c, d, item("shop", "e"), item("shop", "e"))
		require.NoError(t, err)
		assert.Equal(t, []inbox.Stored{
			{ID: a.ID, Result: inbox.AlreadyDone, Mismatch: true}, {ID: b.ID, Result: inbox.Busy}, {ID: c.ID, Result: inbox.Updated},
			{ID: d.ID, Result: inbox.Updated}, {ID: item("shop", "e").ID, Result: inbox.New}, {ID: item("shop", "e").ID, Result: inbox.Updated},
		}, stored)

		processed, err := store.AlreadyProcessed(ctx, a.ID, nil)
		require.NoError(t, err)
		assert.True(t, processed)
		processed, err = store.AlreadyProcessed(ctx, inbox.ID{Source: "shop", MessageID: "new"}, nil)
		require.NoError(t, err)
		assert.False(t, processed)
		assert.Equal(t, inbox.Seen, got(t, store, inbox.ID{Source: "shop", MessageID: "new"}).State)
	})
}
