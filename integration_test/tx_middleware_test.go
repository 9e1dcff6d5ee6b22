package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

func TestTxAlone(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		obs := &seen{}
		tx := newTx(t, h.seenBy(t, obs), middleware.TxConfig{})

		msg := newMessage("")
		produced, err := chain(book(h), tx)(msg)
		require.NoError(t, err)
		assert.Len(t, produced, 1, "returned messages are passed to the Router")
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

func TestTxHandlerWorksOnACopy(t *testing.T) {
	type key struct{}
	h := onPgx(t)
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
}

func TestTxReturnedMessagesOutliveTheTransaction(t *testing.T) {
	type key struct{}
	h := onPgx(t)
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

	// A publisher behind the Router must not find the ended transaction in the context.
	broker := &published{}
	pub := decorated(t, h, outbox.PublisherConfig{WithoutTx: outbox.PassThrough}, broker)
	require.NoError(t, pub.Publish("topic", produced...))
	assert.Equal(t, 1, broker.count())
}

func TestTxTime(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
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
			for limit := 250 * time.Millisecond; !reached; limit *= 2 { // a busy machine may need longer to reach it
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

// TestTxOfAHandlerThatIgnoresItsContext: the handler hangs, and another process can handle the message meanwhile.
func TestTxOfAHandlerThatIgnoresItsContext(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		noLeaks(t)
		msg, wrote, goOn := newMessage(""), make(chan error, 1), make(chan struct{})
		hung := make(chan error, 1)
		go func() {
			_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
				wrote <- write(h, msg)
				<-goOn
				if h.pool == nil { // database/sql has an error of its own for statements after a rollback
					return nil, nil
				}
				return nil, h.execTx(context.WithoutCancel(msg.Context()), "select 1")
			}, newTx(t, h, middleware.TxConfig{Timeout: time.Second}), newInbox(t, h, middleware.InboxConfig{}))(msg.Copy())
			hung <- err
		}()
		require.NoError(t, within(t, "the handler writes", wrote))
		other := chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}), newInbox(t, h, middleware.InboxConfig{}))
		_, err := other(msg.Copy())
		close(goOn)
		require.ErrorIs(t, within(t, "the handler returns", hung), context.DeadlineExceeded)
		require.NoError(t, err, "the message stays locked")
		assert.Equal(t, 1, effects(t, h, msg))
	})
}

func TestTxIsolationAndOnBegin(t *testing.T) {
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
	})
}

// together is a barrier for the first attempts of two handlers.
type together struct {
	wg    sync.WaitGroup
	calls atomic.Int32
}

func newTogether() *together {
	b := &together{}
	b.wg.Add(2)
	return b
}

func (b *together) wait() {
	if b.calls.Add(1) <= 2 {
		b.wg.Done()
		b.wg.Wait()
	}
}

func TestTxRetries(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		h.exec(t, "create table accounts (id text primary key, n int not null)")
		h.exec(t, "insert into accounts values ('a', 0), ('b', 0)")

		// Each adds one to the balance that it read from the other's account: write skew, which only one of them may commit.
		skew := func(b *together, mine, other string) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				q, _ := (*core.DB)(h.db).Tx(msg.Context())
				var n int
				err := drive.Collect(msg.Context(), q, func(rows drive.Rows) error { return rows.Scan(&n) },
					"select sum(n) from accounts")
				if err != nil {
					return nil, err
				}
				b.wait()
				if _, err := q.Exec(msg.Context(), "update accounts set n = $1 where id = $2", n+1, mine); err != nil {
					return nil, err
				}
				return book(h)(msg)
			}
		}
		deadlock := func(b *together, mine, other string) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				if err := h.execTx(msg.Context(), "update accounts set n = n + 1 where id = $1", mine); err != nil {
					return nil, err
				}
				b.wait()
				if err := h.execTx(msg.Context(), "update accounts set n = n + 1 where id = $1", other); err != nil {
					return nil, err
				}
				return book(h)(msg)
			}
		}
		for name, test := range map[string]struct {
			handler func(b *together, mine, other string) message.HandlerFunc
			level   sql.IsolationLevel
		}{"serialization failure": {skew, sql.LevelSerializable}, "deadlock": {deadlock, sql.LevelDefault}} {
			run := func(retries int) (errs []error, obs *seen, messages []*message.Message, calls int) {
				b := newTogether()
				obs = &seen{}
				messages = []*message.Message{newMessage("one"), newMessage("two")}
				errs = make([]error, 2)
				mws := stack(t, h.seenBy(t, obs), middleware.StackConfig{
					Tx: middleware.TxConfig{Isolation: test.level, MaxRetries: retries},
				})
				var wg sync.WaitGroup
				for i, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
					wg.Go(func() { _, errs[i] = chain(test.handler(b, pair[0], pair[1]), mws...)(messages[i]) })
				}
				wg.Wait()
				return errs, obs, messages, int(b.calls.Load())
			}
			before := outboxed(t, h)
			errs, obs, messages, calls := run(0)
			require.NoError(t, errors.Join(errs...), name)
			assert.Greater(t, calls, 2, name)
			assert.Greater(t, obs.attempts(), 1, name)
			for _, msg := range messages {
				assert.Equal(t, 1, effects(t, h, msg), name)
			}
			assert.Equal(t, before+2, outboxed(t, h), name)

			errs, obs, messages, calls = run(-1)
			require.Error(t, errors.Join(errs...), name)
			assert.Equal(t, 2, calls, name)
			assert.Equal(t, 1, obs.attempts(), name)
			assert.Equal(t, 1, effects(t, h, messages[0])+effects(t, h, messages[1]), name)
		}
	})
}

// Each attempt starts with the message as it was delivered.
func TestTxAttemptsAreIndependent(t *testing.T) {
	h := onPgx(t)
	msg := newMessage("payload")
	msg.Metadata.Set("m", "1")
	attempts := 0
	_, err := chain(func(c *message.Message) ([]*message.Message, error) {
		attempts++
		assert.True(t, c.Equals(msg), "attempt %d", attempts)
		require.NoError(t, write(h, c))
		if attempts < 3 {
			c.Payload[0] = 'X'
			c.Metadata.Set("m", "2")
			c.Ack()
			c.SetContext(context.Background())
			return nil, serializationFailure(t, h)
		}
		return nil, nil
	}, stack(t, h, middleware.StackConfig{})...)(msg)
	require.NoError(t, err)
	assert.Equal(t, 3, attempts)
	assert.Equal(t, 1, effects(t, h, msg))
}

// TestTxRepeatsWhileItsRouterCloses: the end of a message's context cuts off only the pause before the next attempt.
func TestTxRepeatsWhileItsRouterCloses(t *testing.T) {
	h := onPgx(t)
	ctx, cancel := context.WithCancel(t.Context())
	msg := newMessage("payload")
	msg.SetContext(ctx)
	attempts := 0
	_, err := chain(func(c *message.Message) ([]*message.Message, error) {
		cancel()
		if attempts++; attempts == 1 {
			return nil, serializationFailure(t, h)
		}
		return nil, write(h, c)
	}, stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{Backoff: outbox.Backoff{Initial: time.Hour}}})...)(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, effects(t, h, msg))
}

// serializationFailure returns an error with SQLSTATE 40001 as the driver creates it.
func serializationFailure(t testing.TB, h handle) error {
	_, err := (*core.DB)(h.db).Exec(t.Context(), "do $$ begin raise exception 'x' using errcode = '40001'; end $$")
	require.Equal(t, "40001", text.SQLState(err))
	return err
}

func TestTxUnknownCommitIsNotRepeated(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		// The server goes down during COMMIT.
		h.exec(t, `create function die() returns trigger language plpgsql as
			$$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$`)
		h.exec(t, `create constraint trigger die after insert on effects deferrable initially deferred
			for each row execute function die()`)
		calls := 0
		msg := newMessage("")
		handler := chain(func(msg *message.Message) ([]*message.Message, error) {
			calls++
			return book(h)(msg)
		}, stack(t, h, middleware.StackConfig{})...)
		_, err := handler(msg)
		require.ErrorIs(t, err, outbox.ErrCommitUnknown)
		assert.Equal(t, 1, calls)

		h.exec(t, "drop trigger die on effects")
		_, err = handler(msg)
		require.NoError(t, err)
		_, err = handler(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, effects(t, h, msg))
		assert.Equal(t, 1, outboxed(t, h))
	})
}
