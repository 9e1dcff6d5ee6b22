package integration_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/queue"
)

// An operator's pause of a topic reaches the queue: none of its messages is claimed until it is resumed, with or
// without a limit, new or due again. Others are handled meanwhile.
func TestPauseReachesTheQueue(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	ad, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	topics := []string{"paused", "limited", "others"}
	done := map[string]*atomic.Int64{}
	handlers := map[string]queue.Handler{}
	for _, topic := range topics {
		n := &atomic.Int64{}
		done[topic] = n
		handlers[topic] = queue.Handler{Handle: func(context.Context, *queue.Message) error { n.Add(1); return nil }}
	}
	limited := handlers["limited"]
	limited.Concurrency = 1
	handlers["limited"] = limited
	d := dispatching(t, s, quickDispatcher(handlers))
	for _, topic := range topics[:2] {
		require.NoError(t, ad.Pause(t.Context(), admin.TopicAct{Topic: topic, Reason: "test"}))
	}
	for _, topic := range topics {
		storeAll(t, s, items(topic, 20)...)
	}
	h.exec(t, "UPDATE inbox_queue SET due_at = clock_timestamp() WHERE topic <> 'others' AND id % 2 = 0 AND owner IS NULL")
	eventually(t, func() bool { return done["others"].Load() == 20 }, "the others are handled")
	drain(t, d)
	owner := queue.NewOwner()
	assert.Empty(t, claimed(t, s, owner, 10), "claimed by hand")
	stats, err := ad.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	shown := map[string]bool{}
	for _, q := range stats.Queue {
		shown[q.Topic] = q.Paused
	}
	assert.Equal(t, map[string]bool{"paused": true, "limited": true, "others": false}, shown)
	h.exec(t, "UPDATE inbox_queue SET due_at = now() - interval '2 hours' WHERE state = 'processing'")
	findings, err := ad.Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range findings {
		assert.NotEqual(t, "queue_waits", f.Check, "its topic is paused by an operator: %s", f)
	}
	for _, topic := range topics[:2] {
		assert.Zero(t, done[topic].Load(), topic)
		require.NoError(t, ad.Resume(t.Context(), admin.TopicAct{Topic: topic, Reason: "test"}))
		eventually(t, func() bool { return done[topic].Load() == 20 }, "%s is handled", topic)
	}
}
