package integration_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestUnackOfOnesOwnAckOnly: a handler committed its ack; before that is noticed, the message was made pending again
// and another handled it. That ack stays.
func TestUnackOfOnesOwnAckOnly(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	var calls atomic.Int32
	handled := make(chan struct{})
	d := dispatching(t, s, quickDispatcher(map[string]queue.Handler{
		"orders": {Handle: func(ctx context.Context, _ *queue.Message) error {
			defer close(handled) // panics if closed twice
			calls.Add(1)
			err := h.execTx(ctx, "commit")
			h.exec(t, "update inbox_queue set done_at = done_at + interval '1 millisecond' where state = 'done'")
			return errors.Join(err, errHandler)
		}},
	}))
	<-handled
	require.NoError(t, d.Close())
	untilState(t, s, itemID("orders", 0), queue.Done)
	assert.EqualValues(t, 1, calls.Load())
}

// TestFailedAckKeepsNoLease: the ack failed, so the row is not locked, and the loss of the message is detected.
func TestFailedAckKeepsNoLease(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	cfg := quickSubscriber()
	cfg.LeaseTTL = time.Second
	messages, err := subscriberOn(t, s, cfg).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	msg := <-messages
	_, work := core.TakeWork(msg)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = work.Ack(over)
	require.ErrorIs(t, err, context.Canceled)
	h.exec(t, "update inbox_queue set owner = gen_random_uuid(), locked_until = now() + interval '1 hour'")
	select {
	case <-msg.Context().Done():
	case <-time.After(patience):
		t.Error("its context did not end")
	}
	msg.Nack()
}

// TestExpiredWhileItIsHandled: a message and its lease expire while its handler runs. It is not buried meanwhile.
func TestExpiredWhileItIsHandled(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	begun, gate := make(chan struct{}), make(chan struct{})
	var dead atomic.Int32
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Handle: func(context.Context, *queue.Message) error {
			close(begun)
			<-gate
			return nil
		}},
	})
	cfg.LeaseTTL = 2 * time.Second
	cfg.OnDead = func(context.Context, *queue.Message, error) error { dead.Add(1); return nil }
	dispatching(t, s, cfg)
	<-begun
	h.exec(t, "update inbox_queue set owner = null, locked_until = null, due_at = now(), expires_at = "+
		"now() - interval '1 hour'")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from inbox_queue where owner is not null or state <> 'processing'") == 1
	},
		"the dispatcher takes it to bury it")
	close(gate)
	untilState(t, s, itemID("orders", 0), queue.Done)
	assert.Zero(t, dead.Load())
}

// TestIngestForgetsWhoLeft: a delivery that ended before its turn is not stored by a later one.
func TestIngestForgetsWhoLeft(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	ingest, err := queue.Ingest(s, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
		return queue.Item{ID: queue.ID{Source: "broker", MessageID: msg.UUID}, Topic: "orders"}, nil
	}})
	require.NoError(t, err)
	deliver := func(ctx context.Context, id string) error {
		msg := message.NewMessage(id, nil)
		msg.SetContext(ctx)
		return ingest(msg)
	}
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "lock table inbox_queue in exclusive mode")
	require.NoError(t, err)
	first := make(chan error, 1)
	go func() { first <- deliver(t.Context(), "first") }()
	eventually(t, func() bool {
		return h.count(t, "select count(*) from pg_locks where not granted and database = (select oid from pg_database "+
			"where datname = current_database())") == 1
	}, "the first writes")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, deliver(over, "left"), context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-first)
	require.NoError(t, deliver(t.Context(), "later"))
	assert.Equal(t, []string{"first", "later"}, column[string](t, h, "select message_id from inbox_queue order by 1"))
}
