package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestDefaultHandlerTakesTheRest: topics with a handler go to it, and all others to the default one.
func TestDefaultHandlerTakesTheRest(t *testing.T) {
	store := storeOn(t, onPgx(t), quickStore())
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
	_, err := queue.NewDispatcher(store, cfg, nil)
	require.NoError(t, err, "the default handler serves all topics")
}

// TestServicesShareAQueue: two services have handlers for different topics of one table, in separate processes, and do
// not delay each other's messages. Each leaves messages without a handler to the other.
func TestServicesShareAQueue(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, quickStore())
	var mu sync.Mutex
	var worst time.Duration
	handled := 0
	topics := []string{"one", "two", "three"}
	for _, topic := range topics {
		dispatching(t, store, quickDispatcher(map[string]queue.Handler{
			topic: {Handle: func(_ context.Context, msg *queue.Message) error {
				mu.Lock()
				defer mu.Unlock()
				handled++
				worst = max(worst, time.Since(msg.FirstSeenAt))
				return nil
			}},
		}))
	}
	const rounds = 50
	for i := range rounds {
		for _, topic := range topics {
			storeAll(t, store, queue.Item{ID: itemID(topic, i), Topic: topic})
		}
	}
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return handled == len(topics)*rounds
	}, "all are handled")
	assert.Less(t, worst, 10*time.Second, "messages without a handler here are left alone immediately")
}
