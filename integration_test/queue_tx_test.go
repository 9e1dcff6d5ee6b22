package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestStoreJoinsTransactions: everything a store does in the caller's transaction is committed or rolled back with it.
func TestStoreJoinsTransactions(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		store, owner := newStore(t, h, queue.StoreConfig{Retention: time.Nanosecond}), queue.NewOwner()
		id := item("shop", "a").ID
		state := func(ctx context.Context) string {
			return value[string](t, h, "select coalesce(min(q::text), 'none') from inbox_queue q where message_id = 'a'")
		}
		claim := func(ctx context.Context) error {
			msgs, err := store.Claim(ctx, queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1})
			assert.Len(t, msgs, 1)
			return err
		}
		counted := func(n int, err error) error { assert.Equal(t, 1, n); return err }
		for _, step := range []struct {
			name string
			call func(ctx context.Context) error
			then string // prepares the next step
		}{
			{"see", func(ctx context.Context) error { _, err := store.AlreadyProcessed(ctx, id, nil); return err }, ""},
			{"enqueue", func(ctx context.Context) error { _, err := store.Enqueue(ctx, item("shop", "a")); return err }, ""},
			{"claim", claim, ""},
			{"renew", func(ctx context.Context) error {
				ours, err := store.Renew(ctx, queue.Renew{Owner: owner, LeaseTTL: time.Hour}, id)
				assert.Len(t, ours, 1)
				return err
			}, ""},
			{"release", func(ctx context.Context) error { return counted(store.Release(ctx, owner, id)) }, ""},
			{"claim again", claim, ""},
			{"abandon", func(ctx context.Context) error { return counted(store.Abandon(ctx, queue.Abandon{Owner: owner}, id)) },
				"update inbox_queue set due_at = clock_timestamp()"},
			{"claim for the third time", claim, "update inbox_queue set locked_until = '2020-01-01'"},
			{"reap", func(ctx context.Context) error { return counted(store.ReapExpired(ctx)) },
				"update inbox_queue set due_at = clock_timestamp(), crashes = 0"},
			{"claim for the last time", claim, ""},
			{"fail", func(ctx context.Context) error { return counted(store.Fail(ctx, queue.Fail{Owner: owner}, id)) }, ""},
			{"mark processing", func(ctx context.Context) error { return store.MarkProcessing(ctx, id) }, ""},
			{"mark dead", func(ctx context.Context) error { return store.MarkDead(ctx, id, "why") }, ""},
			{"mark processed", func(ctx context.Context) error { return store.MarkProcessed(ctx, id) }, ""},
			{"clean", func(ctx context.Context) error { _, err := store.Clean(ctx); return err }, ""},
		} {
			before := state(t.Context())
			end := openTx(t, h, step.call)
			assert.Equal(t, before, state(t.Context()), "%s is visible before its commit", step.name)
			end(false)
			assert.Equal(t, before, state(t.Context()), "%s is not rolled back", step.name)
			end = openTx(t, h, step.call)
			end(true)
			assert.NotEqual(t, before, state(t.Context()), "%s did nothing", step.name)
			if step.then != "" {
				h.exec(t, step.then)
			}
		}
	})
}

// TestStoreInAnotherTransaction: with a transaction of another database, or one that has ended, a store returns an
// error and does nothing.
func TestStoreInAnotherTransaction(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	url := newMigratedDatabase(t)
	h, other := newPgxHandle(t, url), newPgxHandle(t, url)
	store := newStore(t, h, queue.StoreConfig{})
	var ended context.Context
	require.NoError(t, outbox.InTx(t.Context(), other.db, func(ctx context.Context) error {
		_, err := store.Enqueue(ctx, item("shop", "a"))
		require.ErrorIs(t, err, outbox.ErrOtherDB)
		_, err = store.Claim(ctx, queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 1})
		require.ErrorIs(t, err, outbox.ErrOtherDB)
		_, err = store.Ack(ctx, queue.NewOwner(), item("shop", "a").ID)
		require.ErrorIs(t, err, outbox.ErrOtherDB)
		return nil
	}))
	require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error { ended = ctx; return nil }))
	_, err := store.Enqueue(ended, item("shop", "a"))
	require.ErrorIs(t, err, outbox.ErrNoTx)
	require.ErrorIs(t, err, outbox.ErrTxEnded)
	_, err = store.Get(t.Context(), item("shop", "a").ID)
	require.ErrorIs(t, err, queue.ErrNotFound)
}

// TestEnqueueAfterTheEndOfItsTransaction: plain SQL has ended the transaction, and perhaps begun another. Whether a
// message is stored then or not, InTx returns an error, and nothing is lost unnoticed.
func TestEnqueueAfterTheEndOfItsTransaction(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		store := newStore(t, h, queue.StoreConfig{})
		for _, end := range []string{
			"commit", "rollback", "commit; begin", "rollback; begin", "commit and chain", "rollback and chain",
		} {
			err := outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
				_, err := store.Enqueue(ctx, item(end, "before"))
				require.NoError(t, errors.Join(err, h.execTx(ctx, end)), end)
				_, _ = store.Enqueue(ctx, item(end, "after")) // by a caller that ignores errors
				return nil
			})
			require.ErrorIs(t, err, outbox.ErrTxEnded, end)
			// Again, as a caller does after that error.
			require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
				_, err := store.Enqueue(ctx, item(end, "before"), item(end, "after"))
				return err
			}), end)
			assert.Equal(t, 2, h.count(t, "select count(*) from inbox_queue where source = $1 and state = 'processing'", end),
				end)
		}
	})
}
