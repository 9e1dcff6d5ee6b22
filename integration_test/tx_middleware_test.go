package integration_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

func TestTxAlone(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		obs := &seen{}
		tx := newTx(t, h.seenBy(t, obs), middleware.TxConfig{})

		msg := newMessage("")
		produced, err := chain(book(h), tx)(msg)
		require.NoError(t, err)
		assert.Len(t, produced, 1, "returned messages go on to the Router")
		assert.Equal(t, 1, effects(t, h, msg))

		msg = newMessage("")
		produced, err = chain(failing(book(h), errHandler), tx)(msg)
		require.ErrorIs(t, err, errHandler)
		assert.Empty(t, produced)
		assert.Zero(t, effects(t, h, msg))

		msg = newMessage("")
		assert.PanicsWithValue(t, "boom", func() {
			_, _ = chain(func(msg *message.Message) ([]*message.Message, error) {
				_ = write(h, msg)
				panic("boom")
			}, tx)(msg)
		})
		assert.Zero(t, effects(t, h, msg))
		assert.Equal(t, []observe.Outcome{observe.Processed, observe.Failed, observe.Failed}, obs.outcomes())
	})
}

func TestTxGivesTheNativeTransaction(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			if h.pool != nil {
				tx, err := outbox.PgxTx(msg.Context())
				require.NoError(t, err)
				_, err = tx.Exec(msg.Context(), "select 1")
				return nil, err
			}
			tx, err := outbox.SQLTx(msg.Context())
			require.NoError(t, err)
			_, err = tx.ExecContext(msg.Context(), "select 1")
			return nil, err
		}, newTx(t, h, middleware.TxConfig{}))(newMessage(""))
		require.NoError(t, err)
	})
}

func TestTxHandlerWorksOnACopy(t *testing.T) {
	t.Parallel()
	type key struct{}
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		tx := newTx(t, h, middleware.TxConfig{})
		original := func() *message.Message {
			msg := newMessage("payload")
			msg.Metadata.Set("m", "1")
			msg.SetContext(context.WithValue(context.Background(), key{}, "v"))
			return msg
		}

		msg := original()
		_, err := chain(func(c *message.Message) ([]*message.Message, error) {
			assert.True(t, c.Equals(msg))
			assert.Equal(t, "v", c.Context().Value(key{}))
			c.Payload[0], c.UUID = 'X', "other"
			c.Metadata.Set("m", "2")
			c.SetContext(context.Background())
			return nil, nil
		}, tx)(msg)
		require.NoError(t, err)
		assert.Equal(t, "payload", string(msg.Payload))
		assert.Equal(t, "1", msg.Metadata.Get("m"))
		assert.Equal(t, "v", msg.Context().Value(key{}))

		msg = original()
		_, err = chain(func(c *message.Message) ([]*message.Message, error) {
			c.Ack()
			return failing(book(h), errHandler)(c)
		}, tx)(msg)
		require.ErrorIs(t, err, errHandler)
		assert.True(t, msg.Nack(), "an early ack must not reach the broker")
		assert.Zero(t, effects(t, h, msg))

		msg = original()
		_, err = chain(func(c *message.Message) ([]*message.Message, error) {
			c.Nack()
			return book(h)(c)
		}, tx)(msg)
		require.ErrorIs(t, err, outbox.ErrNacked)
		assert.Zero(t, effects(t, h, msg))
	})
}

func TestTxReturnedMessagesOutliveTheTransaction(t *testing.T) {
	t.Parallel()
	type key struct{}
	forEachHandle(t, func(t *testing.T, h handle) {
		msg := newMessage("")
		msg.SetContext(context.WithValue(context.Background(), key{}, "v"))
		produced, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			out := newMessage("")
			out.SetContext(msg.Context())
			return message.Messages{out}, nil
		}, newTx(t, h, middleware.TxConfig{}))(msg)
		require.NoError(t, err)
		ctx := produced[0].Context()
		require.NoError(t, ctx.Err())
		assert.Equal(t, "v", ctx.Value(key{}))

		// A publisher behind the Router must not find the ended transaction in it.
		broker := &published{}
		pub := decorated(t, h, outbox.PublisherConfig{WithoutTx: outbox.PassThrough}, broker)
		require.NoError(t, pub.Publish("topic", produced...))
		assert.Equal(t, 1, broker.count())
	})
}

func TestTxTime(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		reached := false
		sleepy := func(msg *message.Message) ([]*message.Message, error) {
			if err := write(h, msg); err != nil {
				return nil, err
			}
			reached = true
			return nil, h.execTx(msg.Context(), "select pg_sleep(60)")
		}
		deaf := func(msg *message.Message) ([]*message.Message, error) {
			if err := write(h, msg); err != nil {
				return nil, err
			}
			reached = true
			<-msg.Context().Done()
			return nil, nil
		}
		for name, handler := range map[string]message.HandlerFunc{"statement": sleepy, "deaf handler": deaf} {
			reached = false
			for limit := 250 * time.Millisecond; !reached; limit *= 2 { // a busy machine may need more to get that far
				msg := newMessage("")
				_, err := chain(handler, newTx(t, h, middleware.TxConfig{Timeout: limit}))(msg)
				require.Error(t, err, name)
				assert.Zero(t, effects(t, h, msg), name)
			}
			reached = false
			for limit := 250 * time.Millisecond; !reached; limit *= 2 {
				msg := newMessage("")
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				msg.SetContext(ctx)
				_, err := chain(handler, newTx(t, h, middleware.TxConfig{Timeout: -1}))(msg)
				require.Error(t, err, name)
				assert.NotErrorIs(t, err, outbox.ErrCommitUnknown, name)
				assert.Zero(t, effects(t, h, msg), name)
				if name == "deaf handler" && reached {
					require.ErrorIs(t, err, context.DeadlineExceeded, name)
					require.ErrorContains(t, err, "exceeded", name)
				}
			}
		}

		ctx, cancel := context.WithCancel(context.Background())
		msg := newMessage("")
		msg.SetContext(ctx)
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			cancel()
			return bookSilently(h)(msg)
		}, newTx(t, h, middleware.TxConfig{}))(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, effects(t, h, msg), "the message's cancellation must not stop the handler")
	})
}

func TestTxIsolationAndOnBegin(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		setting := func(ctx context.Context, name string) (v string) {
			q, err := (*core.DB)(h.db).Tx(ctx)
			require.NoError(t, err)
			require.NoError(t, drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&v) },
				"select current_setting($1)", name))
			return v
		}
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			assert.Equal(t, "serializable", setting(msg.Context(), "transaction_isolation"))
			assert.Equal(t, "acme", setting(msg.Context(), "app.tenant"))
			return nil, nil
		}, newTx(t, h, middleware.TxConfig{
			Isolation: sql.LevelSerializable,
			OnBegin: func(ctx context.Context, msg *message.Message) error {
				return h.execTx(ctx, "select set_config('app.tenant', $1, true)", msg.Metadata.Get("tenant"))
			},
		}))(func() *message.Message {
			msg := newMessage("")
			msg.Metadata.Set("tenant", "acme")
			return msg
		}())
		require.NoError(t, err)

		_, err = chain(func(*message.Message) ([]*message.Message, error) {
			t.Error("the handler was called")
			return nil, nil
		}, newTx(t, h, middleware.TxConfig{
			OnBegin: func(context.Context, *message.Message) error { return errHandler },
		}))(newMessage(""))
		require.ErrorIs(t, err, errHandler)
	})
}
