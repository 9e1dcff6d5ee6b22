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
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

// begunOutside begins a transaction as an HTTP handler would, and ends it with rollback.
func begunOutside(t *testing.T, h handle) map[string]func(fn func(ctx context.Context)) {
	return map[string]func(fn func(ctx context.Context)){
		"InTx": func(fn func(ctx context.Context)) {
			require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error { fn(ctx); return errUndo }), errUndo)
		},
		"WithTx": func(fn func(ctx context.Context)) {
			tx, _, rollback := beginNative(t, h)
			ctx, err := joinNative(t.Context(), h, tx)
			require.NoError(t, err)
			fn(ctx)
			require.NoError(t, rollback())
		},
	}
}

// beginNative begins a transaction like code that does not use this module.
func beginNative(t testing.TB, h handle) (native any, commit, rollback func() error) {
	t.Helper()
	if h.sql != nil {
		tx, err := h.sql.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		return tx, tx.Commit, tx.Rollback
	}
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	return tx, func() error { return tx.Commit(t.Context()) }, func() error { return tx.Rollback(t.Context()) }
}

// TestHandlersDoNotJoinWhoPublished: an in-process Pub/Sub that passes on contexts carries an open transaction, also
// one of another handler, to a handler, which runs in its own goroutine.
func TestHandlersDoNotJoinWhoPublished(t *testing.T) {
	h := onPgx(t)
	pub := newOutboxPublisher(t, h)
	begun := begunOutside(t, h)
	for name, around := range map[string][]message.HandlerMiddleware{
		"Tx of a handler":    {newTx(t, h, middleware.TxConfig{})},
		"Stack of a handler": stack(t, h, middleware.StackConfig{Inbox: middleware.InboxConfig{Consumer: "first"}}),
	} {
		begun[name] = func(fn func(ctx context.Context)) {
			_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
				fn(msg.Context())
				return nil, errUndo
			}, around...)(newMessage(""))
			require.ErrorIs(t, err, errUndo)
		}
	}
	for outside, transact := range begun {
		for inside, handler := range map[string]message.HandlerFunc{
			"Tx":    chain(bookSilently(h), newTx(t, h, middleware.TxConfig{})),
			"Stack": chain(book(h), stack(t, h, middleware.StackConfig{})...),
			"InTx": func(msg *message.Message) ([]*message.Message, error) {
				return nil, outbox.InTx(msg.Context(), h.db, func(ctx context.Context) error {
					msg.SetContext(ctx)
					return write(h, msg)
				})
			},
			"nothing": func(msg *message.Message) ([]*message.Message, error) {
				assert.ErrorIs(t, write(h, msg), outbox.ErrNoTx)
				assert.ErrorIs(t, pub.PublishContext(msg.Context(), "topic", newMessage("")), outbox.ErrNoTx)
				assert.ErrorIs(t, (*core.Publisher)(pub).Capture(msg.Context(), "topic", newMessage("")), outbox.ErrNoTx)
				assert.ErrorIs(t, outbox.AfterCommit(msg.Context(), func(context.Context) {}), outbox.ErrNoTx)
				assert.ErrorIs(t, outbox.SetRollbackOnly(msg.Context()), outbox.ErrNoTx)
				out := newMessage("")
				out.SetContext(msg.Context())
				assert.ErrorIs(t, pub.Publish("topic", out), outbox.ErrNoTx)
				_, err := (*core.DB)(h.db).Exec(msg.Context(), `insert into effects (message_id) values ($1)`, msg.UUID)
				return nil, err
			},
		} {
			pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, nil)
			done := make(chan error, 1)
			router := startRouter(t, func(r *message.Router) {
				r.AddConsumerHandler("handler", "events", pubsub, func(msg *message.Message) error {
					_, err := handler(msg)
					done <- err
					return nil
				})
			})
			event := newMessage("event")
			transact(func(ctx context.Context) {
				event.SetContext(ctx)
				require.NoError(t, pubsub.Publish("events", event))
				require.NoError(t, h.execTx(ctx, "select 1"), "%s in %s: only this goroutine uses the connection",
					inside, outside)
				require.NoError(t, <-done, "%s in %s", inside, outside)
			})
			require.NoError(t, router.Close())
			assert.Equal(t, 1, effects(t, h, event), "%s in %s", inside, outside)
		}
	}
}

// TestHandlersDoNotJoinTheirEarlierSelves: a handler publishes to its own topic, with its context, while its
// transaction is open.
func TestHandlersDoNotJoinTheirEarlierSelves(t *testing.T) {
	h := onPgx(t)
	for name, around := range map[string]message.HandlerMiddleware{
		"Tx": newTx(t, h, middleware.TxConfig{}),
		"Stack": func(next message.HandlerFunc) message.HandlerFunc {
			return chain(next, stack(t, h, middleware.StackConfig{})...)
		},
		"InTx": func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) (produced []*message.Message, err error) {
				return produced, outbox.InTx(msg.Context(), h.db, func(ctx context.Context) (err error) {
					msg.SetContext(ctx)
					produced, err = next(msg)
					return err
				})
			}
		},
	} {
		pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, nil)
		event, second := newMessage("first"), newMessage("second")
		done, failed := make(chan error, 1), make(chan error, 1)
		router := startRouter(t, func(r *message.Router) {
			r.AddConsumerHandler("handler", "events", pubsub, func(msg *message.Message) error {
				_, err := around(func(msg *message.Message) ([]*message.Message, error) {
					if err := write(h, msg); err != nil || msg.UUID == second.UUID {
						return nil, err
					}
					second.SetContext(msg.Context())
					if err := pubsub.Publish("events", second); err != nil {
						return nil, err
					}
					return nil, errors.Join(<-done, errHandler)
				})(msg)
				if msg.UUID == second.UUID {
					done <- err
				} else {
					failed <- err
				}
				return nil
			})
		})
		require.NoError(t, pubsub.Publish("events", event))
		require.ErrorIs(t, <-failed, errHandler)
		require.NoError(t, router.Close())
		assert.Zero(t, effects(t, h, event), name)
		assert.Equal(t, 1, effects(t, h, second), name)
		if name == "Stack" {
			assert.Equal(t, 1, h.count(t, `select attempts from inbox where message_id = $1 and processed_at is null`,
				event.UUID), "the failure is the first message's")
		}
	}
}

// TestTxLeavesATransactionInTheContextAlone, in calls without a Router.
func TestTxLeavesATransactionInTheContextAlone(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		for outside, transact := range begunOutside(t, h) {
			for _, joins := range []bool{false, true} {
				msg := newMessage("")
				transact(func(ctx context.Context) {
					msg.SetContext(ctx)
					_, err := chain(bookSilently(h), newTx(t, h, middleware.TxConfig{JoinContext: joins}))(msg)
					require.NoError(t, err)
				})
				assert.Equal(t, map[bool]int{false: 1}[joins], effects(t, h, msg), outside)
			}
		}
	})
}

// TestTxJoinsAcrossARouterIfItIsToldTo: the Subscriber begins the transaction and waits for the ack.
func TestTxJoinsAcrossARouterIfItIsToldTo(t *testing.T) {
	h := onPgx(t)
	pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true, BlockPublishUntilSubscriberAck: true}, nil)
	router := startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{JoinContext: true}})...)
		r.AddConsumerHandler("handler", "events", pubsub, func(msg *message.Message) error { return write(h, msg) })
	})
	for _, end := range []error{errUndo, nil} {
		msg := newMessage("")
		require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
			msg.SetContext(ctx)
			return errors.Join(pubsub.Publish("events", msg), end)
		}), end)
		assert.Equal(t, map[bool]int{true: 1}[end == nil], effects(t, h, msg))
	}
	require.NoError(t, router.Close())
}

// TestALoopDoesNotJoinWhoPublished: without a Router, a loop handles messages that carry the context of an open
// transaction. If its InTx were a savepoint of that transaction, it would return nil and its work would be lost with
// the rollback.
func TestALoopDoesNotJoinWhoPublished(t *testing.T) {
	h := onPgx(t)
	for name, outside := range map[string]func(context.Context) context.Context{
		"as it came": func(ctx context.Context) context.Context { return ctx }, "OutsideTx": outbox.OutsideTx,
	} {
		pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, nil)
		messages, err := pubsub.Subscribe(t.Context(), "events")
		require.NoError(t, err)
		done := make(chan error)
		go func() {
			for msg := range messages {
				err := outbox.InTx(outside(msg.Context()), h.db, func(ctx context.Context) error {
					return h.execTx(ctx, `insert into effects (message_id) values ($1)`, msg.UUID)
				})
				msg.Ack()
				done <- err
			}
			close(done)
		}()
		event := newMessage("event")
		publishing := func(ctx context.Context) error {
			event.SetContext(ctx)
			require.NoError(t, pubsub.Publish("events", event))
			err = <-done
			require.NoError(t, outbox.InTx(ctx, h.db, func(context.Context) error {
				return nil
			}), "in its own goroutine it is nested")
			return errUndo
		}
		require.ErrorIs(t, inTx(t, h, publishing), errUndo)
		if name == "OutsideTx" {
			require.NoError(t, err)
			assert.Equal(t, 1, effects(t, h, event))
		} else {
			require.ErrorIs(t, err, core.ErrTxBusy, "and not nil, since none of its work is left")
			assert.ErrorContains(t, err, "OutsideTx")
			assert.Zero(t, effects(t, h, event))
		}
		require.NoError(t, pubsub.Close())
		<-done
	}
}

// TestIngestDoesNotJoinWhoPublished in a loop of the user's: messages that it acked as stored would be lost with that
// transaction's rollback.
func TestIngestDoesNotJoinWhoPublished(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{})
	ingest, err := queue.Ingest(store, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
		return item("loop", msg.UUID), nil
	}})
	require.NoError(t, err)
	pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, nil)
	messages, err := pubsub.Subscribe(t.Context(), "events")
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		for msg := range messages {
			err := ingest(msg)
			msg.Ack()
			done <- err
		}
		close(done)
	}()
	event, own := newMessage("event"), newMessage("own")
	require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
		event.SetContext(ctx)
		require.NoError(t, pubsub.Publish("events", event))
		require.NoError(t, <-done)
		own.SetContext(ctx)
		require.NoError(t, ingest(own))
		return errUndo
	}), errUndo)
	assert.Equal(t, queue.Processing, got(t, store, item("loop", event.UUID).ID).State)
	_, err = store.Get(t.Context(), item("loop", own.UUID).ID)
	require.ErrorIs(t, err, queue.ErrNotFound, "in the transaction's goroutine it is part of the transaction")
	require.NoError(t, pubsub.Close())
	<-done
}

func TestTxJoinsIfItIsToldTo(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		tx := newTx(t, h, middleware.TxConfig{JoinContext: true})

		// With a savepoint: the failure of the inner transaction leaves the outer one usable.
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

		// A serialization failure dooms the outer transaction too: repeating the inner one cannot help.
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

		// A rollback of the outer transaction also undoes the inner one.
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
		native, commit, _ := beginNative(t, h)
		ctx, err := joinNative(t.Context(), h, native)
		require.NoError(t, err)
		done = newMessage("")
		done.SetContext(ctx)
		_, err = chain(book(h), stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{JoinContext: true}})...)(done)
		require.NoError(t, err)
		assert.Zero(t, effects(t, h, done), "committed too early")
		require.NoError(t, commit())
		assert.Equal(t, 1, effects(t, h, done))
		assert.Equal(t, 1, outboxed(t, h))
	})
}

// A handler's own Tx inside the stack is a savepoint, and the stack still recognises its message.
func TestTxInsideOfTheStack(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
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
	h := onPgx(t)
	var ended context.Context
	handler := chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}))
	_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
		ended = context.WithoutCancel(msg.Context())
		return nil, nil
	}, newTx(t, h, middleware.TxConfig{}))(newMessage(""))
	require.NoError(t, err)

	msg := newMessage("") // as delivered by an in-process Pub/Sub, context included
	msg.SetContext(ended)
	_, err = handler(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, effects(t, h, msg))
}
