package integration_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

// contextless is an observer that has no context to give.
type contextless struct{ ended chan context.Context }

func (contextless) HandleStart(context.Context, observe.HandleStart) context.Context { return nil }
func (c contextless) HandleEnd(ctx context.Context, _ observe.HandleEnd)             { c.ended <- ctx }

// TestDispatcherIgnoresNilContexts: an observer that returns no context keeps no message from being handled.
func TestDispatcherIgnoresNilContexts(t *testing.T) {
	t.Parallel()
	eye := contextless{make(chan context.Context, 10)}
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, eye)
	store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
	require.NoError(t, err)
	_, err = store.Enqueue(t.Context(), queue.Item{ID: queue.ID{Source: "shop", MessageID: "1"}, Topic: "payment"})
	require.NoError(t, err)
	handled := 0
	dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Service: "booking", Handlers: map[string]queue.Handler{
			"payment": {Handle: func(context.Context, *queue.Message) error { handled++; return nil }},
		},
	}, nil)
	require.NoError(t, err)
	require.NoError(t, dispatcher.Drain(t.Context()))
	require.Equal(t, 1, handled)
	require.NotNil(t, <-eye.ended)
}
