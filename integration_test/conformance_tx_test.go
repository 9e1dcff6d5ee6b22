package integration_test

import (
	"cmp"
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/queue"
)

var promisesOfTransactions = []promise{
	{"a message leaves after its commit as it went in", func(t *testing.T, s subject) {
		msg := newMessage("\xff\x00{")
		msg.Metadata.Set("k", "ü\\\"'\n")
		outbox.SetKey(msg, "key")
		committed := false
		require.NoError(t, outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
			require.NoError(t, outbox.AfterCommit(ctx, func(context.Context) { committed = true }))
			require.NoError(t, s.publisher(t, outbox.PublisherConfig{}).PublishContext(ctx, "orders", msg))
			assert.Empty(t, outboxtest.Drain(t, s.db), "before the commit")
			return nil
		}))
		assert.True(t, committed)
		all := outboxtest.Drain(t, s.db)
		require.Len(t, all, 1)
		assert.Equal(t, "orders", all[0].Topic)
		assert.Equal(t, msg.UUID, all[0].UUID)
		assert.Equal(t, msg.Payload, all[0].Payload)
		assert.Equal(t, msg.Metadata, all[0].Metadata)
		assert.Empty(t, outboxtest.Drain(t, s.db), "for the second time")
	}},
	{"what is rolled back never leaves", func(t *testing.T, s subject) {
		pub := s.publisher(t, outbox.PublisherConfig{})
		write := func(ctx context.Context) error {
			assert.NoError(t, outbox.AfterCommit(ctx, func(context.Context) {
				t.Error("AfterCommit of a transaction that was rolled back")
			}))
			return pub.PublishContext(ctx, "orders", newMessage("no"))
		}
		require.ErrorIs(t, outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
			require.NoError(t, write(ctx))
			return errTakenBack
		}), errTakenBack)
		require.ErrorIs(t, outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
			require.NoError(t, outbox.SetRollbackOnly(ctx))
			return write(ctx)
		}), outbox.ErrRolledBack)
		require.PanicsWithError(t, errTakenBack.Error(), func() {
			_ = outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
				require.NoError(t, write(ctx))
				panic(errTakenBack)
			})
		})
		ctx, cancel := context.WithCancel(t.Context())
		require.ErrorIs(t, outbox.InTx(ctx, s.db, func(ctx context.Context) error {
			require.NoError(t, write(ctx))
			cancel()
			return nil
		}), context.Canceled)
		s.leaves(t)
	}},
	{"a nested InTx is undone by itself", func(t *testing.T, s subject) {
		pub := s.publisher(t, outbox.PublisherConfig{})
		write := func(ctx context.Context, payload string) {
			require.NoError(t, pub.PublishContext(ctx, "orders", ordered(payload)))
		}
		require.NoError(t, outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
			write(ctx, "outer")
			require.ErrorIs(t, outbox.InTx(ctx, s.db, func(nested context.Context) error {
				write(nested, "undone")
				require.NoError(t, outbox.InTx(nested, s.db, func(ctx context.Context) error {
					write(ctx, "undone with it")
					return nil
				}))
				require.ErrorIs(t, outbox.InTx(ctx, s.db, func(context.Context) error { return nil }), outbox.ErrTxBusy)
				return errTakenBack
			}), errTakenBack)
			require.NoError(t, outbox.InTx(ctx, s.db, func(nested context.Context) error {
				write(nested, "kept")
				require.ErrorIs(t, outbox.InTx(nested, s.db, func(ctx context.Context) error {
					write(ctx, "undone")
					return errTakenBack
				}), errTakenBack)
				write(nested, "kept after it")
				return nil
			}))
			write(ctx, "last")
			return nil
		}))
		s.leaves(t, "outer", "kept", "kept after it", "last")
	}},
	{"messages of a key leave in the order of their transactions", func(t *testing.T, s subject) {
		pub := s.publisher(t, outbox.PublisherConfig{WithoutTx: outbox.OwnTx})
		require.NoError(t, pub.Publish("orders", ordered("1"), ordered("2")))
		require.NoError(t, pub.Publish("payments", ordered("3")))
		end := openTx(t, handle{db: s.db}, func(ctx context.Context) error {
			return pub.PublishContext(ctx, "orders", ordered("late"))
		})
		require.NoError(t, pub.Publish("orders", ordered("4")))
		s.leaves(t, "1", "2", "3", "4")
		end(true)
		s.leaves(t, "late")
	}},
	{"a delayed message waits", func(t *testing.T, s subject) {
		pub := s.publisher(t, outbox.PublisherConfig{WithoutTx: outbox.OwnTx})
		later, soon, past := ordered("later"), ordered("soon"), ordered("past")
		outbox.SetDelay(later, time.Hour)
		outbox.SetDelay(soon, 50*time.Millisecond)
		outbox.SetDueAt(past, time.Now().Add(-time.Hour))
		require.NoError(t, pub.Publish("orders", later, soon, past))
		var left []string
		eventually(t, func() bool { left = append(left, payloadsOf(outboxtest.Drain(t, s.db))...); return len(left) > 1 },
			"both leave")
		assert.Equal(t, []string{"past", "soon"}, left)
	}},
	{"errors of a publisher", func(t *testing.T, s subject) {
		pub := s.publisher(t, outbox.PublisherConfig{MaxPayloadBytes: 10})
		require.ErrorIs(t, pub.Publish("orders", newMessage("a")), outbox.ErrNoTx)
		var first context.Context
		require.NoError(t, outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
			first = ctx
			bad := newMessage("bad")
			bad.Metadata.Set("k", "\x00")
			require.ErrorIs(t, pub.PublishContext(ctx, "orders", newMessage("good"), bad), outbox.ErrInvalidMessage)
			require.ErrorIs(t, pub.PublishContext(ctx, "orders", newMessage("eleven bytes")), outbox.ErrInvalidMessage)
			in, out := newMessage("in"), newMessage("out")
			in.SetContext(ctx)
			require.ErrorIs(t, pub.Publish("orders", in, out), outbox.ErrMixedTx)
			return nil
		}))
		require.ErrorIs(t, pub.PublishContext(first, "orders", newMessage("late")), outbox.ErrTxEnded)
		require.NoError(t, outbox.InTx(t.Context(), s.other, func(ctx context.Context) error {
			require.ErrorIs(t, pub.PublishContext(ctx, "orders", newMessage("a")), outbox.ErrOtherDB)
			require.ErrorIs(t, outbox.InTx(ctx, s.db, func(context.Context) error { return nil }), outbox.ErrOtherDB)
			return nil
		}))
		err := outbox.InTxWith(t.Context(), s.db, outbox.TxOptions{ReadOnly: true}, func(ctx context.Context) error {
			return pub.PublishContext(ctx, "orders", newMessage("a"))
		})
		assert.Equal(t, "25006", sqlState(err), "%v", err)
		s.leaves(t)
	}},
	{"a decorator passes on what has no transaction", func(t *testing.T, s subject) {
		decorate, err := outbox.Decorator(s.db, outbox.PublisherConfig{WithoutTx: outbox.PassThrough}, nil)
		require.NoError(t, err)
		var broker outboxtest.Publisher
		pub, err := decorate(&broker)
		require.NoError(t, err)
		require.NoError(t, outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
			msg := newMessage("in")
			msg.SetContext(ctx)
			return pub.Publish("orders", msg)
		}))
		require.NoError(t, pub.Publish("orders", newMessage("out")))
		assert.Equal(t, []string{"out"}, payloadsOf(broker.Messages()))
		s.leaves(t, "in")
	}},
	{"a statement that fails spoils its transaction", func(t *testing.T, s subject) {
		store, pub := s.store(t, queue.StoreConfig{}), s.publisher(t, outbox.PublisherConfig{})
		storeAll(t, store, item("spoilt", "a"), item("spoilt", "b"))
		a, b := item("spoilt", "a").ID, item("spoilt", "b").ID
		var both sync.WaitGroup
		both.Add(2)
		mark := func(name string, first, second queue.ID) error {
			return outbox.InTx(t.Context(), s.db, func(ctx context.Context) error {
				err := store.MarkDead(ctx, first, name)
				both.Done()
				both.Wait()
				_ = store.MarkDead(ctx, second, name) // waits for the other, who waits for this one: one of them fails
				return cmp.Or(err, pub.PublishContext(ctx, "orders", newMessage(name)))
			})
		}
		one := make(chan error)
		go func() { one <- mark("one", a, b) }()
		err := mark("two", b, a)
		winner, failed := "two", <-one
		if err != nil {
			assert.NoError(t, failed)
			winner, failed = "one", err
		}
		require.Error(t, failed, "one of two that wait for each other")
		s.leaves(t, winner)
		for _, id := range []queue.ID{a, b} {
			assert.Equal(t, winner, got(t, store, id).LastError)
		}
	}},
	{"REPEATABLE READ refuses to change what another has changed", func(t *testing.T, s subject) {
		store := s.store(t, queue.StoreConfig{})
		id := item("repeatable", "a").ID
		storeAll(t, store, item("repeatable", "a"))
		err := outbox.InTxWith(t.Context(), s.db, outbox.TxOptions{Isolation: sql.LevelRepeatableRead},
			func(ctx context.Context) error {
				if _, err := store.Get(ctx, id); err != nil {
					return err
				}
				require.NoError(t, store.MarkDead(t.Context(), id, "another"))
				return store.MarkDead(ctx, id, "this one")
			})
		assert.Equal(t, "40001", sqlState(err), "%v", err)
		assert.Equal(t, "another", got(t, store, id).LastError)
	}},
}
