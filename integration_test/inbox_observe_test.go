package integration_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/inbox"
	"github.com/millrace-go/watermill-outbox/observe"
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
	store, err := inbox.NewStore(h.db, inbox.StoreConfig{}, nil)
	require.NoError(t, err)
	_, err = store.Enqueue(t.Context(), inbox.Item{ID: inbox.ID{Source: "shop", MessageID: "1"}, Topic: "payment"})
	require.NoError(t, err)
	handled := 0
	dispatcher, err := inbox.NewDispatcher(store, inbox.DispatcherConfig{Service: "booking", Handlers: map[string]inbox.Handler{
		"payment": {Handle: func(context.Context, *inbox.Message) error { handled++; return nil }},
	}}, nil)
	require.NoError(t, err)
	require.NoError(t, dispatcher.Drain(t.Context()))
	require.Equal(t, 1, handled)
	require.NotNil(t, <-eye.ended)
}
