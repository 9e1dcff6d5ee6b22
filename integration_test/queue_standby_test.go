package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestKnownMessagesWaitForTheStandby: rows that would be answered with Busy, AlreadyDone or "processed" may not be on a
// standby, as the wait of the session that committed them was interrupted. If a sender deleted its message after such
// an answer, a failover would lose it.
func TestKnownMessagesWaitForTheStandby(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	store := newStore(t, h, queue.StoreConfig{})
	briefly := func(act func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return act(ctx)
	}
	enqueue := func(id string) (result queue.StoreResult, err error) {
		err = briefly(func(ctx context.Context) error {
			stored, err := store.Enqueue(ctx, item("sender", id))
			if err == nil {
				result = stored[0].Result
			}
			return err
		})
		return result, err
	}
	reload := func(statement string, want string) {
		h.exec(t, statement)
		h.exec(t, "select pg_reload_conf()")
		eventually(t, func() bool { return value[string](t, h, "show synchronous_standby_names") == want }, "it is in effect")
	}
	owner, done := queue.NewOwner(), item("sender", "done").ID
	_, err := enqueue("done")
	require.NoError(t, err)
	reload("alter system set synchronous_standby_names = 'nobody'", "nobody")
	h.pool.Reset()
	_, err = enqueue("busy")
	require.Error(t, err, "on no standby")
	require.Error(t, briefly(func(ctx context.Context) error {
		_, err := store.Claim(ctx, queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 2})
		return err
	}))
	const owned = "select count(*) from inbox_queue where owner is not null"
	eventually(t, func() bool { return h.count(t, owned) == 2 }, "visible, and on no standby")
	require.Error(t, briefly(func(ctx context.Context) error { _, err := store.Ack(ctx, owner, done); return err }))
	eventually(t, func() bool { return got(t, store, done).State == queue.Done }, "done, and on no standby")

	locker, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = locker.Rollback(context.Background()) }()
	// Another copy, which waits.
	_, err = locker.Exec(t.Context(), "select from inbox_queue where message_id = 'done' for update")
	require.NoError(t, err)
	for _, id := range []string{"busy", "done"} {
		result, err := enqueue(id)
		require.Errorf(t, err, "%s: %s", id, result)
	}
	err = briefly(func(ctx context.Context) error { _, err := store.AlreadyProcessed(ctx, done, nil); return err })
	require.Error(t, err)

	reload("alter system reset synchronous_standby_names", "")
	h.pool.Reset()
	for id, want := range map[string]queue.StoreResult{"busy": queue.Busy, "done": queue.AlreadyDone} {
		result, err := enqueue(id)
		require.NoError(t, err)
		assert.Equal(t, want, result)
	}
	processed, err := store.AlreadyProcessed(t.Context(), done, nil)
	require.NoError(t, err)
	assert.True(t, processed)
}
