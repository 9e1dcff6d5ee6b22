package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/inbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

var promisesOfStores = []promise{
	{"what a store does in a transaction is undone with it", func(t *testing.T, s subject) {
		store, owner := s.store(t, inbox.StoreConfig{}), inbox.NewOwner()
		id := item("joined", "a").ID
		state := func() any {
			msg, err := store.Get(t.Context(), id)
			if errors.Is(err, inbox.ErrUnknown) {
				return "unknown"
			}
			require.NoError(t, err)
			return msg
		}
		claims := func(ctx context.Context) int {
			msgs, err := store.Claim(ctx, inbox.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1, Topics: []string{"orders"}})
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
			n, err := store.Abandon(ctx, inbox.Abandon{Owner: owner, Err: "why", Delay: time.Millisecond}, id)
			assert.Equal(t, 1, n)
			return err
		})
		eventually(t, func() bool { return claims(t.Context()) == 1 }, "it comes again")

		end = openTx(t, handle{db: s.db}, func(ctx context.Context) error {
			n, err := store.Ack(ctx, owner, id)
			assert.Equal(t, 1, n)
			return err
		})
		ours, err := store.Renew(t.Context(), inbox.Renew{Owner: owner, LeaseTTL: time.Minute}, id)
		require.NoError(t, err)
		assert.Empty(t, ours, "nobody waits for what is acked in a transaction")
		stored, err := store.Enqueue(t.Context(), item("joined", "a"))
		require.NoError(t, err)
		assert.Equal(t, inbox.Busy, stored[0].Result)
		end(true)
		assert.Equal(t, inbox.Done, got(t, store, id).State)
		n, err := store.Ack(t.Context(), owner, id)
		require.NoError(t, err)
		assert.Zero(t, n)
	}},
	{"an insertion waits for another of the same message", func(t *testing.T, s subject) {
		store := s.store(t, inbox.StoreConfig{})
		results := make(chan inbox.StoreResult)
		for _, commit := range []bool{false, true} {
			id := map[bool]string{true: "kept", false: "undone"}[commit]
			end := openTx(t, handle{db: s.db}, func(ctx context.Context) error { _, err := store.Enqueue(ctx, item("twin", id)); return err })
			go func() {
				stored, err := store.Enqueue(t.Context(), item("twin", id))
				assert.NoError(t, err)
				results <- stored[0].Result
			}()
			end(commit)
			assert.Equal(t, map[bool]inbox.StoreResult{true: inbox.Updated, false: inbox.New}[commit], <-results)
		}
	}},
	{"an owner who lost its lease changes nothing", func(t *testing.T, s subject) {
		store := s.store(t, inbox.StoreConfig{Backoff: outbox.Backoff{Initial: -1}})
		storeAll(t, store, inbox.Item{ID: item("stale", "a").ID, Topic: "stale"})
		take := func(owner inbox.Owner, ttl time.Duration) (n int) {
			msgs, err := store.Claim(t.Context(), inbox.Claim{Owner: owner, LeaseTTL: ttl, Limit: 1, Topics: []string{"stale"}})
			require.NoError(t, err)
			return len(msgs)
		}
		old, now := inbox.NewOwner(), inbox.NewOwner()
		require.Equal(t, 1, take(old, time.Second))
		eventually(t, func() bool { return take(now, time.Minute) == 1 }, "the lease is over")
		n, err := store.Ack(t.Context(), old, item("stale", "a").ID)
		require.NoError(t, err)
		assert.Zero(t, n)
		assert.Equal(t, 1, got(t, store, item("stale", "a").ID).Attempt)
	}},
	{"a Dispatcher commits with its handlers", func(t *testing.T, s subject) {
		store, pub := s.store(t, quickStore()), s.publisher(t, outbox.PublisherConfig{})
		dispatcher, err := inbox.NewDispatcher(store, inbox.DispatcherConfig{
			PollInterval: 5 * time.Millisecond,
			OnDead: func(ctx context.Context, msg *inbox.Message, err error) error {
				return pub.PublishContext(ctx, "graves", ordered(msg.MessageID+" is dead: "+err.Error()))
			},
			Handlers: map[string]inbox.Handler{"work": {Concurrency: 1, Handle: func(ctx context.Context, msg *inbox.Message) error {
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
			}}},
		}, nil)
		require.NoError(t, err)
		ended := make(chan error)
		go func() { ended <- dispatcher.Run(t.Context()) }()
		<-dispatcher.Running()
		storeAll(t, store, inbox.Item{ID: inbox.ID{Source: "work", MessageID: "plain"}, Topic: "work"})
		storeAll(t, store, inbox.Item{ID: inbox.ID{Source: "work", MessageID: "shaky"}, Topic: "work"})
		untilState(t, store, inbox.ID{Source: "work", MessageID: "plain"}, inbox.Done)
		untilState(t, store, inbox.ID{Source: "work", MessageID: "shaky"}, inbox.Done)
		storeAll(t, store, inbox.Item{ID: inbox.ID{Source: "work", MessageID: "poison"}, Topic: "work"})
		untilState(t, store, inbox.ID{Source: "work", MessageID: "poison"}, inbox.Dead)
		require.NoError(t, dispatcher.Close())
		require.NoError(t, <-ended)
		s.leaves(t, "plain", "shaky", "poison is dead: poison message: the handler failed")
		assert.Equal(t, 2, got(t, store, inbox.ID{Source: "work", MessageID: "shaky"}).Attempt)
	}},
	{"a Subscriber's message is done in the transaction of its handler", func(t *testing.T, s subject) {
		store := s.store(t, quickStore())
		sub, err := inbox.NewSubscriber(store, inbox.SubscriberConfig{PollInterval: 5 * time.Millisecond}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Close()) }()
		messages, err := sub.Subscribe(t.Context(), "deliveries")
		require.NoError(t, err)
		id := inbox.ID{Source: "work", MessageID: "delivery"}
		storeAll(t, store, inbox.Item{ID: id, Topic: "deliveries", Payload: []byte("parcel")})
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
		assert.Equal(t, inbox.Done, got(t, store, id).State)
		s.leaves(t, "by itself")
	}},
}
