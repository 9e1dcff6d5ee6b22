package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// newStore makes a Store over the tables of a handle.
func newStore(t testing.TB, h handle, cfg queue.StoreConfig) *queue.Store {
	t.Helper()
	store, err := queue.NewStore(h.db, cfg, nil)
	require.NoError(t, err)
	return store
}

// item is one to store, with a topic and a payload.
func item(source, id string) queue.Item {
	return queue.Item{ID: queue.ID{Source: source, MessageID: id}, Topic: "orders", Payload: []byte("payload of " + id)}
}

// claimed takes up to n messages for an owner.
func claimed(t testing.TB, store *queue.Store, owner queue.Owner, n int) []queue.Message {
	t.Helper()
	msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: n})
	require.NoError(t, err)
	return msgs
}

// got reads a message.
func got(t testing.TB, store *queue.Store, id queue.ID) queue.Message {
	t.Helper()
	msg, err := store.Get(t.Context(), id)
	require.NoError(t, err)
	return msg
}
