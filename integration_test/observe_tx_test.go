package integration_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// ends records what observers of transactions and writes are told.
type ends struct {
	mu     sync.Mutex
	txs    []observe.TxEnd
	writes []observe.WriteEnd
}

type startKey struct{}

func (e *ends) TxStart(ctx context.Context, start observe.TxStart) context.Context {
	return context.WithValue(ctx, startKey{}, start)
}

func (e *ends) TxEnd(ctx context.Context, end observe.TxEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Value(startKey{}) == (observe.TxStart{DB: end.DB}) {
		e.txs = append(e.txs, end)
	}
}

func (e *ends) WriteStart(ctx context.Context, start observe.WriteStart) context.Context {
	for _, msg := range start.Messages {
		msg.Metadata.Set("traced", start.Topic)
	}
	return context.WithValue(ctx, startKey{}, start.Topic)
}

func (e *ends) WriteEnd(ctx context.Context, end observe.WriteEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Value(startKey{}) == end.Topic {
		e.writes = append(e.writes, end)
	}
}

func TestObserversAreTold(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		seen := &ends{}
		h = h.seenBy(t, seen)
		pub := newOutboxPublisher(t, h)
		work := func(fail error) error {
			return outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
				require.NoError(t, pub.PublishContext(ctx, "published", newMessage("12"), newMessage("345")))
				require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
					return (*core.Publisher)(pub).Capture(ctx, "captured", newMessage("6789"))
				}))
				return fail
			})
		}
		require.NoError(t, work(nil))
		require.ErrorIs(t, work(errUndo), errUndo)
		require.Len(t, seen.txs, 2, "a savepoint does not count")
		require.NoError(t, seen.txs[0].Err)
		require.ErrorIs(t, seen.txs[1].Err, errUndo)
		assert.Equal(t, h.name, seen.txs[0].DB)
		assert.Positive(t, seen.txs[0].Duration)
		require.Len(t, seen.writes, 4)
		undone := errUndo
		if h.sql != nil {
			undone = nil // it was written before
		}
		for i, want := range []observe.WriteEnd{
			{DB: h.name, Topic: "published", Messages: 2, Bytes: 5}, {DB: h.name, Topic: "captured", Messages: 1, Bytes: 4},
			{DB: h.name, Topic: "published", Messages: 2, Bytes: 5},
			{DB: h.name, Topic: "captured", Messages: 1, Bytes: 4, Err: undone},
		} {
			got := seen.writes[i]
			got.Duration = 0
			assert.Equal(t, want, got)
		}
		assert.Equal(t, 3, h.count(t, "select count(*) from outbox where metadata->>'traced' = topic"),
			"metadata that an observer set is stored")
	})
}
