package integration_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

func TestTxRollbackOnlyAcksAndDropsMessages(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		obs := &seen{}
		rollbackOnly := func(msg *message.Message) ([]*message.Message, error) {
			require.NoError(t, outbox.SetRollbackOnly(msg.Context()))
			return book(h)(msg)
		}
		for _, mws := range [][]message.HandlerMiddleware{
			{newTx(t, h.seenBy(t, obs), middleware.TxConfig{})},
			stack(t, h.seenBy(t, obs), middleware.StackConfig{}),
		} {
			msg := newMessage("")
			produced, err := chain(rollbackOnly, mws...)(msg)
			require.NoError(t, err)
			assert.Empty(t, produced)
			assert.Zero(t, effects(t, h, msg))
			assert.Zero(t, outboxed(t, h))
			assert.Zero(t, h.count(t, "select count(*) from inbox"))
		}
		assert.Equal(t, []observe.Outcome{observe.RolledBack, observe.RolledBack}, obs.outcomes())

		// To the outer transaction, a rollback of the inner one on request is an error like any other.
		msg := newMessage("")
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			return nil, outbox.InTx(msg.Context(), h.db, outbox.SetRollbackOnly)
		}, newTx(t, h, middleware.TxConfig{}))(msg)
		require.ErrorIs(t, err, outbox.ErrRolledBack)
	})
}

// TestHandlerThatEndsTheTransaction: the handler's commit includes the inbox row, but its returned messages are lost.
// Its message must not count as handled, whether the handler then returns, fails, panics or ends its goroutine, and
// whatever it has begun since. A pgx.Tx refuses to end.
func TestHandlerThatEndsTheTransaction(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		bySQL := func(statement string) func(context.Context) error {
			return func(ctx context.Context) error { return h.execTx(ctx, statement) }
		}
		for what, ending := range map[string]func() error{
			"success": func() error { return nil },
			"error":   func() error { return errHandler },
			"panic":   func() error { panic("the handler") },
			"goexit":  func() error { runtime.Goexit(); return nil },
		} {
			for name, end := range map[string]func(ctx context.Context) error{
				"commit": bySQL("commit"), "commit; begin": bySQL("commit; begin"), "commit and chain": bySQL("commit and chain"),
				"Commit": func(ctx context.Context) error {
					if h.pool != nil {
						tx, _ := outbox.PgxTx(ctx)
						return tx.Commit(ctx)
					}
					tx, _ := outbox.SQLTx(ctx)
					return tx.Commit()
				},
				"Rollback": func(ctx context.Context) error {
					if h.pool != nil {
						tx, _ := outbox.PgxTx(ctx)
						return tx.Rollback(ctx)
					}
					tx, _ := outbox.SQLTx(ctx)
					return tx.Rollback()
				},
			} {
				of, reason := what+" after "+name, outbox.ErrTxEnded
				refused := h.pool != nil && (name == "Commit" || name == "Rollback")
				if refused {
					reason = drive.ErrTxManaged
				}
				h.exec(t, "delete from outbox")
				handled, txs, log := &seen{}, &ends{}, newLogCapture(t)
				itself := true
				handler := chain(func(msg *message.Message) ([]*message.Message, error) {
					produced, err := book(h)(msg)
					if !itself {
						return produced, err
					}
					err = errors.Join(err, end(msg.Context()))
					if refused {
						return produced, err
					}
					require.NoError(t, err, of)
					return produced, ending()
				}, stack(t, h.logging(t, outbox.DBConfig{Observers: []observe.Observer{handled, txs}}, log),
					middleware.StackConfig{})...)
				msg := newMessage("")
				for n := range 2 {
					apart(func() { _, _ = handler(msg) })
					assert.Regexp(t, fmt.Sprintf("^%d [^p]", n+1), inboxRow(t, h, msg), of)
					require.ErrorIs(t, handled.last().Err, reason, of)
					require.ErrorIs(t, txs.txs[0].Err, reason, of)
				}
				if (what == "panic" || what == "goexit") && !refused {
					assert.Equal(t, 2, log.count("ended inside the function"), "%s: %v", of, *log.lines)
				}
				assert.Zero(t, outboxed(t, h), of)
				itself = false
				for _, outcome := range []observe.Outcome{observe.Processed, observe.Duplicate} {
					_, err := handler(msg)
					require.NoError(t, err, of)
					assert.Contains(t, inboxRow(t, h, msg), "processed", of)
					assert.Equal(t, outcome, handled.last().Outcome, of)
					assert.Equal(t, 1, outboxed(t, h), of)
				}
			}
		}

		// A copy that was processed in the meantime keeps its row.
		msg := newMessage("")
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			require.NoError(t, h.execTx(msg.Context(), "rollback"))
			_, err := chain(bookSilently(h), stack(t, h, middleware.StackConfig{})...)(message.NewMessage(msg.UUID, nil))
			return nil, err
		}, stack(t, h, middleware.StackConfig{})...)(msg)
		require.ErrorIs(t, err, outbox.ErrTxEnded)
		assert.Contains(t, inboxRow(t, h, msg), "processed")
	})
}

// apart runs fn in its own goroutine and returns when it has ended, in any way.
func apart(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		fn()
	}()
	<-done
}

// TestRouterCloseLetsHandlersCommit: a handler that is running while the Router closes, which ends the context of its
// message, still commits its writes and its message together.
func TestRouterCloseLetsHandlersCommit(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		f := newFeed()
		started, cancelled := make(chan struct{}), make(chan context.Context, 1)
		router := startRouter(t, func(r *message.Router) {
			r.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					cancelled <- msg.Context()
					return next(msg)
				}
			})
			r.AddMiddleware(stack(t, h, middleware.StackConfig{})...)
			r.AddHandler("h", "in", f, "out", &published{}, func(msg *message.Message) ([]*message.Message, error) {
				close(started)
				<-(<-cancelled).Done()
				return book(h)(msg)
			})
		})
		msg := newMessage("")
		f.messages <- msg
		<-started
		require.NoError(t, router.Close())
		assert.True(t, settled(t, msg))
		assert.Equal(t, 1, effects(t, h, msg))
		assert.Equal(t, 1, outboxed(t, h))
	})
}
