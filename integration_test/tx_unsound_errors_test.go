package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestAnErrorThatPanicsEndsItsTransaction: what is returned as an error may be a nil pointer that panics when it is
// asked whether it is another one. It is a failure like others, and its connection goes back to the pool.
func TestAnErrorThatPanicsEndsItsTransaction(t *testing.T) {
	t.Parallel()
	h := pgxHandle(t, "one connection", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	newEffects(t, h)
	for name, err := range unsound() {
		for where, run := range map[string]func(ctx context.Context, fn func(ctx context.Context) error) error{
			"in a transaction": func(ctx context.Context, fn func(context.Context) error) error {
				return outbox.InTx(ctx, h.db, fn)
			},
			"behind a savepoint": func(ctx context.Context, fn func(context.Context) error) error {
				return outbox.InTx(ctx, h.db, func(ctx context.Context) error { return outbox.InTx(ctx, h.db, fn) })
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			failed := run(ctx, func(ctx context.Context) error {
				require.NoError(t, h.execTx(ctx, `insert into effects (message_id) values ('a')`))
				return err
			})
			assert.ErrorContains(t, failed, "return nil instead of a nil pointer", "%s %s", name, where)
			assert.Zero(t, h.count(t, "select count(*) from effects"), "%s %s", name, where)
			cancel()
		}
		deliver := delivering(func(*message.Message) ([]*message.Message, error) { return nil, err },
			stack(t, h, middleware.StackConfig{Inbox: middleware.InboxConfig{Consumer: name}}))
		msg := newMessage("")
		for n := 1; n <= 2; n++ {
			require.ErrorContains(t, deliver(msg), "return nil instead of a nil pointer", name)
			assert.Equal(t, n, h.count(t, "select attempts from inbox where message_id = $1", msg.UUID), name)
		}
	}
}

// TestAnErrorThatPanicsEndsNoProcess: it is a failure of its message like others.
func TestAnErrorThatPanicsEndsNoProcess(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxAttempts, cfg.Backoff = 2, outbox.Backoff{Initial: time.Millisecond, Max: time.Millisecond}
	s := storeOn(t, h, cfg)
	handlers := map[string]queue.Handler{}
	for name, err := range unsound() {
		handle := func(context.Context, *queue.Message) error { return err }
		handlers[name] = queue.Handler{Handle: handle}
		handlers[name+", detached"] = queue.Handler{Handle: handle, Detached: true}
	}
	for name, err := range unsound() {
		ingest, failed := queue.Ingest(s, queue.IngestConfig{
			Item: func(*message.Message) (queue.Item, error) { return queue.Item{}, err },
		}, nil)
		require.NoError(t, failed)
		require.ErrorContains(t, ingest(newMessage("")), "return nil instead of a nil pointer", "%s, ingested", name)
	}
	dispatching(t, s, quickDispatcher(handlers))
	for topic := range handlers {
		storeAll(t, s, items(topic, 1)...)
	}
	for topic := range handlers {
		untilState(t, s, itemID(topic, 0), queue.Dead)
		assert.Contains(t, got(t, s, itemID(topic, 0)).LastError, "return nil instead of a nil pointer", topic)
	}
}
