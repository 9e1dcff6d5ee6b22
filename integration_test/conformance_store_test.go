package integration_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/queue"
)

var promisesOfStores = []promise{
	{"what a store does in a transaction is undone with it", func(t *testing.T, s subject) {
		store, owner := s.store(t, queue.StoreConfig{}), queue.NewOwner()
		id := item("joined", "a").ID
		state := func() any {
			msg, err := store.Get(t.Context(), id)
			if errors.Is(err, queue.ErrNotFound) {
				return "unknown"
			}
			require.NoError(t, err)
			return msg
		}
		claims := func(ctx context.Context) int {
			msgs, err := store.Claim(ctx, queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1, Topics: []string{"orders"}})
			require.NoError(t, err)
			return len(msgs)
		}
		rolledBack := func(fn func(ctx context.Context) error) {
			t.Helper()
			before := state()
			end := openTx(t, handle{db: s.db}, fn)
			assert.Equal(t, before, state(), "it is seen before its commit")
			end(false)
			assert.Equal(t, before, state(), "it is not undone")
			require.NoError(t, outbox.InTx(t.Context(), s.db, fn))
		}
		rolledBack(func(ctx context.Context) error { _, err := store.Enqueue(ctx, item("joined", "a")); return err })
		end := openTx(t, handle{db: s.db}, func(ctx context.Context) error { assert.Equal(t, 1, claims(ctx)); return nil })
		assert.Zero(t, claims(t.Context()), "claimed in a transaction that is open")
		end(false)
		assert.Equal(t, 1, claims(t.Context()))
		rolledBack(func(ctx context.Context) error {
			n, err := store.Abandon(ctx, queue.Abandon{Owner: owner, Err: "why", Delay: time.Millisecond}, id)
			assert.Equal(t, 1, n)
			return err
		})
		eventually(t, func() bool { return claims(t.Context()) == 1 }, "it comes again")

		end = openTx(t, handle{db: s.db}, func(ctx context.Context) error {
			n, err := store.Ack(ctx, owner, id)
			assert.Equal(t, 1, n)
			return err
		})
		ours, err := store.Renew(t.Context(), queue.Renew{Owner: owner, LeaseTTL: time.Minute}, id)
		require.NoError(t, err)
		assert.Empty(t, ours, "nobody waits for what is acked in a transaction")
		stored, err := store.Enqueue(t.Context(), item("joined", "a"))
		require.NoError(t, err)
		assert.Equal(t, queue.Busy, stored[0].Result)
		end(true)
		assert.Equal(t, queue.Done, got(t, store, id).State)
		n, err := store.Ack(t.Context(), owner, id)
		require.NoError(t, err)
		assert.Zero(t, n)
	}},
	{"an insertion waits for another of the same message", func(t *testing.T, s subject) {
		store := s.store(t, queue.StoreConfig{})
		const twins = 8
		results := make(chan queue.StoreResult)
		for _, commit := range []bool{false, true} {
			twin := item("twin", fmt.Sprint(commit))
			end := openTx(t, handle{db: s.db}, func(ctx context.Context) error {
				_, err := store.Enqueue(ctx, twin)
				return err
			})
			var begun sync.WaitGroup
			begun.Add(twins)
			for range twins {
				go func() {
					begun.Done()
					stored, err := store.Enqueue(t.Context(), twin)
					assert.NoError(t, err)
					results <- stored[0].Result
				}()
			}
			begun.Wait()
			end(commit)
			count := map[queue.StoreResult]int{}
			for range twins {
				count[<-results]++
			}
			want := map[queue.StoreResult]int{queue.Updated: twins}
			if !commit {
				want = map[queue.StoreResult]int{queue.New: 1, queue.Updated: twins - 1}
			}
			// A copy is Busy to those who see it while another one touches it.
			count[queue.Updated] += count[queue.Busy]
			delete(count, queue.Busy)
			assert.Equal(t, want, count, "committed: %v", commit)
		}
	}},
	{"what commits late is claimed at once", func(t *testing.T, s subject) {
		store := s.store(t, queue.StoreConfig{})
		claim := func() (ids []string) {
			msgs, err := store.Claim(t.Context(), queue.Claim{
				Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 10, Topics: []string{"late"},
			})
			require.NoError(t, err)
			for _, msg := range msgs {
				ids = append(ids, msg.MessageID)
			}
			return ids
		}
		put := func(ctx context.Context, id string) error {
			_, err := store.Enqueue(ctx, queue.Item{ID: queue.ID{Source: "late", MessageID: id}, Topic: "late"})
			return err
		}
		end := openTx(t, handle{db: s.db}, func(ctx context.Context) error { return put(ctx, "late") })
		for _, id := range []string{"a", "b", "c"} { // their ids are higher
			require.NoError(t, put(t.Context(), id))
			assert.Equal(t, []string{id}, claim())
			assert.Empty(t, claim())
		}
		end(true)
		assert.Equal(t, []string{"late"}, claim())
	}},
	{"an owner who lost its lease changes nothing", func(t *testing.T, s subject) {
		store := s.store(t, queue.StoreConfig{Backoff: outbox.Backoff{Initial: -1}})
		storeAll(t, store, queue.Item{ID: item("stale", "a").ID, Topic: "stale"})
		take := func(owner queue.Owner, ttl time.Duration) (n int) {
			msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: ttl, Limit: 1, Topics: []string{"stale"}})
			require.NoError(t, err)
			return len(msgs)
		}
		old, now := queue.NewOwner(), queue.NewOwner()
		require.Equal(t, 1, take(old, time.Second))
		eventually(t, func() bool { return take(now, time.Minute) == 1 }, "the lease is over")
		n, err := store.Ack(t.Context(), old, item("stale", "a").ID)
		require.NoError(t, err)
		assert.Zero(t, n)
		assert.Equal(t, 1, got(t, store, item("stale", "a").ID).Attempt)
	}},
	{"a Dispatcher commits with its handlers", func(t *testing.T, s subject) {
		store, pub := s.store(t, quickStore()), s.publisher(t, outbox.PublisherConfig{})
		dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{
			PollInterval: 5 * time.Millisecond,
			OnDead: func(ctx context.Context, msg *queue.Message, err error) error {
				return pub.PublishContext(ctx, "graves", ordered(msg.MessageID+" is dead: "+err.Error()))
			},
			Handlers: map[string]queue.Handler{
				"work": {Concurrency: 1, Handle: func(ctx context.Context, msg *queue.Message) error {
					if err := pub.PublishContext(ctx, "done", ordered(msg.MessageID)); err != nil {
						return err
					}
					switch {
					case msg.MessageID == "poison":
						return outbox.Poison(errHandler)
					case msg.MessageID == "shaky" && msg.Attempt < 2:
						return errHandler
					}
					return nil
				}},
			},
		}, nil)
		require.NoError(t, err)
		ended := make(chan error)
		go func() { ended <- dispatcher.Run(t.Context()) }()
		<-dispatcher.Running()
		storeAll(t, store, queue.Item{ID: queue.ID{Source: "work", MessageID: "plain"}, Topic: "work"})
		storeAll(t, store, queue.Item{ID: queue.ID{Source: "work", MessageID: "shaky"}, Topic: "work"})
		untilState(t, store, queue.ID{Source: "work", MessageID: "plain"}, queue.Done)
		untilState(t, store, queue.ID{Source: "work", MessageID: "shaky"}, queue.Done)
		storeAll(t, store, queue.Item{ID: queue.ID{Source: "work", MessageID: "poison"}, Topic: "work"})
		untilState(t, store, queue.ID{Source: "work", MessageID: "poison"}, queue.Dead)
		require.NoError(t, dispatcher.Close())
		require.NoError(t, <-ended)
		s.leaves(t, "plain", "shaky", "poison is dead: poison message: the handler failed")
		assert.Equal(t, 2, got(t, store, queue.ID{Source: "work", MessageID: "shaky"}).Attempt)
	}},
	{"a webhook and a broker store a message once", func(t *testing.T, s subject) {
		store := s.store(t, queue.StoreConfig{HashContent: true})
		ingest, err := queue.Ingest(store, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
			return queue.Item{ID: queue.ID{Source: "broker", MessageID: msg.UUID}, Topic: "stored", Payload: msg.Payload}, nil
		}})
		require.NoError(t, err)
		msg := newMessage("a")
		for range 2 {
			require.NoError(t, ingest(msg))
		}
		require.ErrorIs(t, ingest(message.NewMessage("", nil)), outbox.ErrPoison)
		assert.Equal(t, queue.Processing, got(t, store, queue.ID{Source: "broker", MessageID: msg.UUID}).State)

		webhook, err := queue.NewWebhook(store, queue.WebhookConfig{
			ConflictOnChange: true, Verify: func(*http.Request, []byte) error { return nil },
			Item: func(r *http.Request, body []byte) (queue.Item, error) {
				return queue.Item{ID: queue.ID{Source: "web", MessageID: r.Header.Get("Id")}, Topic: "stored", Payload: body}, nil
			},
		}, nil)
		require.NoError(t, err)
		for _, step := range []struct {
			body string
			want int
		}{{"a", http.StatusOK}, {"a", http.StatusOK}, {"b", http.StatusConflict}} {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(step.body))
			r.Header.Set("Id", "1")
			w := httptest.NewRecorder()
			webhook.ServeHTTP(w, r)
			assert.Equal(t, step.want, w.Code, step.body)
		}
		assert.Equal(t, "a", string(got(t, store, queue.ID{Source: "web", MessageID: "1"}).Payload))
	}},
	{"a Subscriber's message is done in the transaction of its handler", func(t *testing.T, s subject) {
		store := s.store(t, quickStore())
		sub, err := queue.NewSubscriber(store, queue.SubscriberConfig{PollInterval: 5 * time.Millisecond}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Close()) }()
		messages, err := sub.Subscribe(t.Context(), "deliveries")
		require.NoError(t, err)
		id := queue.ID{Source: "work", MessageID: "delivery"}
		storeAll(t, store, queue.Item{ID: id, Topic: "deliveries", Payload: []byte("parcel")})
		for _, handler := range []error{errHandler, nil} {
			msg := <-messages
			got, err := outboxtest.Handle(t, s.db, s.publishing(t, handler), msg, middleware.StackConfig{})
			require.ErrorIs(t, err, handler)
			if got.Acked {
				msg.Ack()
			} else {
				msg.Nack()
			}
		}
		assert.Equal(t, queue.Done, got(t, store, id).State)
		s.leaves(t, "by itself")
	}},
}

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
