package integration_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

func TestTxJoinsIfItIsToldTo(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		tx := newTx(t, h, middleware.TxConfig{JoinContext: true})

		// Behind a savepoint: the failure of the inner one leaves the outer one usable.
		failed, done, outer := newMessage(""), newMessage(""), newMessage("")
		err := outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			outer.SetContext(ctx)
			require.NoError(t, write(h, outer))
			failed.SetContext(ctx)
			_, err := chain(failing(book(h), errHandler), tx)(failed)
			require.ErrorIs(t, err, errHandler)
			done.SetContext(ctx)
			_, err = chain(book(h), tx)(done)
			return err
		})
		require.NoError(t, err)
		assert.Equal(t, []int{1, 0, 1}, []int{effects(t, h, outer), effects(t, h, failed), effects(t, h, done)})

		// A serialization failure dooms the outer one as well: repeating the inner one cannot help.
		calls := 0
		err = outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			msg := newMessage("")
			msg.SetContext(ctx)
			_, err := chain(func(*message.Message) ([]*message.Message, error) {
				calls++
				return nil, serializationFailure(t, h)
			}, tx)(msg)
			return err
		})
		require.Equal(t, "40001", text.SQLState(err))
		assert.Equal(t, 1, calls)

		// What the outer one rolls back, the inner one cannot keep.
		done = newMessage("")
		err = outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			done.SetContext(ctx)
			_, err := chain(book(h), tx)(done)
			require.NoError(t, err)
			return errHandler
		})
		require.ErrorIs(t, err, errHandler)
		assert.Zero(t, effects(t, h, done))

		// A transaction that the user began, with the whole stack in it.
		var ctx context.Context
		var commit func() error
		if h.pool != nil {
			native, err := h.pool.Begin(t.Context())
			require.NoError(t, err)
			ctx, err = joinNative(t.Context(), h, native)
			require.NoError(t, err)
			commit = func() error { return native.Commit(t.Context()) }
		} else {
			native, err := h.sql.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			ctx, err = joinNative(t.Context(), h, native)
			require.NoError(t, err)
			commit = native.Commit
		}
		done = newMessage("")
		done.SetContext(ctx)
		_, err = chain(book(h), stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{JoinContext: true}})...)(done)
		require.NoError(t, err)
		assert.Zero(t, effects(t, h, done), "committed before its time")
		require.NoError(t, commit())
		assert.Equal(t, 1, effects(t, h, done))
		assert.Equal(t, 1, outboxed(t, h))
	})
}

// A Tx of the handler's own inside of the stack is a savepoint, and the stack still knows its message.
func TestTxInsideOfTheStack(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		obs := &seen{}
		h = h.seenBy(t, obs)
		mws := append(stack(t, h, middleware.StackConfig{}), newTx(t, h, middleware.TxConfig{}))

		msg := newMessage("")
		_, err := chain(failing(book(h), errHandler), mws...)(msg)
		require.ErrorIs(t, err, errHandler)
		assert.Equal(t, "1 the handler failed", inboxRow(t, h, msg))

		_, err = chain(func(msg *message.Message) ([]*message.Message, error) {
			require.NoError(t, outbox.SetRollbackOnly(msg.Context()))
			return book(h)(msg)
		}, mws...)(msg)
		require.NoError(t, err)
		assert.Zero(t, effects(t, h, msg))
		assert.Contains(t, inboxRow(t, h, msg), "processed", "only the savepoint was rolled back")
		assert.Equal(t, []observe.Outcome{observe.Failed, observe.Processed}, obs.outcomes())
	})
}

func TestTxStartsAnewAfterAnEndedTransaction(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		var ended context.Context
		handler := chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}))
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			ended = context.WithoutCancel(msg.Context())
			return nil, nil
		}, newTx(t, h, middleware.TxConfig{}))(newMessage(""))
		require.NoError(t, err)

		msg := newMessage("") // as a Pub/Sub within the process delivers it, context included
		msg.SetContext(ended)
		_, err = handler(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, effects(t, h, msg))
	})
}

// An in-process Pub/Sub that passes contexts on brings the open transaction of the handler that published to another
// one, which works in a goroutine of its own and must not join it.
func TestTxIsNotSharedBetweenHandlers(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		tx := newTx(t, h, middleware.TxConfig{})
		second := stack(t, h, middleware.StackConfig{Inbox: middleware.InboxConfig{Consumer: "second"}})
		for name, handler := range map[string]message.HandlerFunc{
			"Tx":    chain(bookSilently(h), tx),
			"Stack": chain(book(h), second...),
			"InTx": func(msg *message.Message) ([]*message.Message, error) {
				return nil, outbox.InTx(msg.Context(), h.db, func(ctx context.Context) error {
					msg.SetContext(ctx)
					return write(h, msg)
				})
			},
		} {
			for first, around := range map[string][]message.HandlerMiddleware{
				"Tx": {tx}, "Stack": stack(t, h, middleware.StackConfig{}),
			} {
				pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, nil)
				event, done := newMessage("event"), make(chan error, 10)
				f := newFeed()
				router := startRouter(t, func(r *message.Router) {
					r.AddConsumerHandler("first", "commands", f, func(msg *message.Message) error {
						_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
							if err := write(h, msg); err != nil {
								return nil, err
							}
							event.SetContext(msg.Context())
							if err := pubsub.Publish("events", event); err != nil {
								return nil, err
							}
							return nil, errors.Join(<-done, errHandler) // the second one is done while this one is still open
						}, around...)(msg)
						return err
					})
					r.AddConsumerHandler("second", "events", pubsub, func(msg *message.Message) error {
						_, err := handler(msg)
						done <- err
						return nil
					})
				})
				command := newMessage("command")
				assert.False(t, f.deliver(t, command))
				require.NoError(t, router.Close())
				assert.Zero(t, effects(t, h, command), "%s to %s", first, name)
				assert.Equal(t, 1, effects(t, h, event), "%s to %s", first, name)
			}
		}
	})
}
