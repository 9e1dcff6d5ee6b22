package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// unsound returns errors that panic when they are inspected: nil pointers returned as errors.
func unsound() map[string]error {
	var later *core.RetryAfterError
	return map[string]error{
		"nil pointer": later, "wrapped": fmt.Errorf("wrapped: %w", later), "joined": errors.Join(errHandler, wrapped{later}),
	}
}

type wrapped struct{ error }

func (wrapped) Error() string   { return "wrapped" }
func (w wrapped) Unwrap() error { return w.error }

// met is the storage of a Deduplicator.
type met struct{ sync.Map }

func (m *met) IsDuplicate(_ context.Context, key string) (bool, error) {
	_, duplicate := m.LoadOrStore(key, true)
	return duplicate, nil
}

// TestWatermillsMiddlewaresInsideAreFound at the first message, before the handler can write: Retry would run its
// writes twice, and the others would commit the writes of a failed handler, or drop its message. A handler's own
// AddMiddleware is placed inside too.
func TestWatermillsMiddlewaresInsideAreFound(t *testing.T) {
	h := onPgx(t)
	pub := newOutboxPublisher(t, h)
	poison, err := wmmiddleware.PoisonQueue(&published{}, "poison")
	require.NoError(t, err)
	retry := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
	decorated := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return next(msg) }
	}
	for name, unsafe := range map[string]message.HandlerMiddleware{
		"Retry":        retry.Middleware,
		"PoisonQueue":  poison,
		"IgnoreErrors": wmmiddleware.NewIgnoreErrors([]error{errHandler}).Middleware,
		"Deduplicator": func(next message.HandlerFunc) message.HandlerFunc {
			return (&wmmiddleware.Deduplicator{Repository: &met{}}).Middleware(next)
		},
		"Duplicator": wmmiddleware.Duplicator,
	} {
		for where, own := range map[string][]message.HandlerMiddleware{
			"directly":   {unsafe},
			"in between": {wmmiddleware.CorrelationID, unsafe, wmmiddleware.Timeout(time.Minute), decorated},
		} {
			for does, use := range map[string]func(msg *message.Message) error{
				"writes": func(msg *message.Message) error { return write(h, msg) },
				"publishes": func(msg *message.Message) error {
					return pub.PublishContext(msg.Context(), "events", newMessage(""))
				},
				"nests": func(msg *message.Message) error {
					return outbox.InTx(msg.Context(), h.db, func(ctx context.Context) error {
						return h.execTx(ctx, `insert into effects (message_id) values ($1)`, msg.UUID)
					})
				},
			} {
				if does != "writes" && name != "Retry" { // all are found when the handler first needs its transaction
					continue
				}
				logger, f := watermill.NewCaptureLogger(), newFeed()
				cfg := middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{
					MaxAttempts: 1, MinDeadAge: -1, Backoff: outbox.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond},
				}}
				router := startRouter(t, func(r *message.Router) {
					r.AddMiddleware(stackFor(t, pub, cfg, logger)...)
					handler := r.AddConsumerHandler(name, "orders", f, func(msg *message.Message) error {
						if err := use(msg); err != nil {
							return err
						}
						return errHandler
					})
					handler.AddMiddleware(own...)
				})
				msg := newMessage(name)
				for range 2 {
					assert.False(t, f.deliver(t, msg.Copy()), "%s %s: not acked", name, where)
				}
				require.NoError(t, router.Close())
				assert.Zero(t, h.count(t, "select count(*) from effects"), "%s %s %s", name, where, does)
				assert.Zero(t, outboxed(t, h), "%s %s %s", name, where, does)
				lines := logger.Captured()[watermill.ErrorLogLevel]
				if assert.Len(t, lines, 1, "%s %s %s", name, where, does) {
					assert.ErrorContains(t, lines[0].Err, "Watermill's "+name, where)
				}
			}
		}
	}
}

// TestWatermillsMiddlewaresInsideChargeNothing to a message of the queue if Tx is outermost.
func TestWatermillsMiddlewaresInsideChargeNothing(t *testing.T) {
	h := onPgx(t)
	retry := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
	for where, own := range map[string][]message.HandlerMiddleware{
		"directly":   {retry.Middleware},
		"in between": {wmmiddleware.CorrelationID, retry.Middleware},
	} {
		work := &fakeWork{h: h}
		handler := func(msg *message.Message) ([]*message.Message, error) {
			_, err := outbox.PgxTx(msg.Context())
			return nil, err
		}
		_, err := chain(handler, append([]message.HandlerMiddleware{newTx(t, h, middleware.TxConfig{})}, own...)...)(
			work.of(t, "id"))
		require.ErrorContains(t, err, "Watermill's Retry", where)
		var later *core.RetryAfterError
		require.Len(t, work.failures, 1, where)
		require.ErrorAs(t, work.failures[0], &later, where)
		assert.Positive(t, later.Wait, where)
		assert.ErrorContains(t, later, "Watermill's Retry", where)
	}
}

// TestWatermillsMiddlewaresWhereTheyBelong are accepted: outside, and around a part of a handler with its own
// savepoint.
func TestWatermillsMiddlewaresWhereTheyBelong(t *testing.T) {
	h := onPgx(t)
	retry := wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}
	ignore := wmmiddleware.NewIgnoreErrors([]error{errHandler})
	mws := stack(t, h, middleware.StackConfig{})
	calls := 0
	twice := func(msg *message.Message) ([]*message.Message, error) {
		if calls++; calls%2 == 1 {
			return failing(book(h), errHandler)(msg)
		}
		return book(h)(msg)
	}
	msg := newMessage("")
	_, err := chain(twice, append([]message.HandlerMiddleware{ignore.Middleware, retry.Middleware}, mws...)...)(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, effects(t, h, msg))
	assert.Equal(t, 2, calls)

	msg = newMessage("")
	nested := newTx(t, h, middleware.TxConfig{})
	_, err = chain(twice, append(append([]message.HandlerMiddleware{}, mws...), wmmiddleware.CorrelationID)...)(
		newMessage(""))
	require.ErrorIs(t, err, errHandler)
	calls = 0
	_, err = chain(twice, newTx(t, h, middleware.TxConfig{}), wmmiddleware.CorrelationID, retry.Middleware, nested)(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, effects(t, h, msg), "each attempt in a savepoint")
}
