package integration_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestDefaultHandlerTakesTheRest: what has a handler of its own goes there, and all else to the default one.
func TestDefaultHandlerTakesTheRest(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	store, err := queue.NewStore(outboxtest.NewDB(t), quickStore(), nil)
	require.NoError(t, err)
	var mu sync.Mutex
	got := map[string]string{}
	handler := func(name string) queue.Handler {
		return queue.Handler{Handle: func(_ context.Context, msg *queue.Message) error {
			mu.Lock()
			defer mu.Unlock()
			got[msg.Topic] = name
			return nil
		}}
	}
	for _, topic := range []string{"known", "limited", "one", "two"} {
		storeAll(t, store, items(topic, 1)...)
	}
	limited := handler("limited")
	limited.Concurrency = 1
	cfg := quickDispatcher(map[string]queue.Handler{"known": handler("known"), "limited": limited})
	cfg.DefaultHandler = handler("default")
	drain(t, newDispatcher(t, store, cfg))
	assert.Equal(t, map[string]string{"known": "known", "limited": "limited", "one": "default", "two": "default"}, got)
	cfg.Handlers = nil
	_, err = queue.NewDispatcher(store, cfg, nil)
	require.NoError(t, err, "one handler for all topics")
}

// TestTopicWithoutAHandlerLosesNothing, however long nobody has one: its messages are looked at more and more rarely,
// and never charged.
func TestTopicWithoutAHandlerLosesNothing(t *testing.T) {
	extended(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, err := queue.NewStore(outboxtest.NewDB(t), queue.StoreConfig{MaxAttempts: 2}, nil)
		require.NoError(t, err)
		log := &lineLogger{}
		handlers := map[string]queue.Handler{"known": {Handle: func(context.Context, *queue.Message) error { return nil }}}
		d, err := queue.NewDispatcher(store, queue.DispatcherConfig{Handlers: handlers}, log)
		require.NoError(t, err)
		ended := make(chan error)
		go func() { ended <- d.Run(t.Context()) }()
		one := itemID("unknown", 0)
		storeAll(t, store, items("unknown", 1)...)
		const days = 1
		time.Sleep(days * 24 * time.Hour)
		msg, err := store.Get(t.Context(), one)
		require.NoError(t, err)
		assert.Equal(t, queue.Processing, msg.State, msg.LastError)
		assert.Zero(t, msg.Attempt)
		assert.Equal(t, "no handler for the topic", msg.LastError)
		looks := 0
		for _, line := range log.lines {
			if line[:4] == "INFO" {
				looks++
			}
		}
		assert.Less(t, looks, 60+60*5+days*24, "looks, as far as a line tells")
		require.NoError(t, d.Close())
		require.NoError(t, <-ended)

		handlers["unknown"] = handlers["known"]
		late, err := queue.NewDispatcher(store, queue.DispatcherConfig{Handlers: handlers}, log)
		require.NoError(t, err)
		go func() { ended <- late.Run(t.Context()) }()
		time.Sleep(time.Hour + time.Minute)
		state, _ := stateOf(t, store, one)
		assert.Equal(t, queue.Done, state, "it waits for the next look")
		require.NoError(t, late.Close())
		require.NoError(t, <-ended)
	})
}

// TestServicesShareAQueue: two that have handlers for different topics of one table, in processes of their own, do not
// keep each other's messages from being handled. What one of them has no handler for it leaves to the other.
func TestServicesShareAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, err := queue.NewStore(outboxtest.NewDB(t), queue.StoreConfig{}, nil)
		require.NoError(t, err)
		var mu sync.Mutex
		var worst time.Duration
		handled := 0
		topics := []string{"one", "two", "three"}
		for _, topic := range topics {
			d, err := queue.NewDispatcher(store, queue.DispatcherConfig{Handlers: map[string]queue.Handler{
				topic: {Handle: func(_ context.Context, msg *queue.Message) error {
					mu.Lock()
					defer mu.Unlock()
					handled++
					worst = max(worst, time.Since(msg.FirstSeenAt))
					return nil
				}},
			}}, nil)
			require.NoError(t, err)
			ended := make(chan error)
			go func() { ended <- d.Run(t.Context()) }()
			defer func() {
				require.NoError(t, d.Close())
				require.NoError(t, <-ended)
			}()
		}
		const minutes = 2
		for i := range minutes * 60 {
			for _, topic := range topics {
				storeAll(t, store, queue.Item{ID: itemID(topic, i), Topic: topic})
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, len(topics)*minutes*60, handled)
		assert.LessOrEqual(t, worst, time.Second, "the scan of all rows, once a second, bounds the time from Enqueue to the handler")
	})
}
