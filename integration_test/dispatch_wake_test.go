package integration_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestAPublishWakesNoDispatcher: messages written to the outbox wake no dispatcher, in this process or in others.
func TestAPublishWakesNoDispatcher(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	var seen statementLog
	url := newMigratedDatabase(t)
	h := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	there := newPgxHandle(t, url)
	s := storeOn(t, h, quickStore())
	var handled atomic.Int64
	d := dispatching(t, s, queue.DispatcherConfig{
		PollInterval: time.Hour, CloseTimeout: patience, Handlers: map[string]queue.Handler{
			"orders": {Handle: func(context.Context, *queue.Message) error { handled.Add(1); return nil }},
		},
	})
	heard := func(by handle, id string) {
		before := handled.Load()
		storeAll(t, storeOn(t, by, quickStore()), item("test", id))
		eventually(t, func() bool { return handled.Load() > before }, "it is handled")
	}
	heard(there, "it listens")
	drain(t, d)
	for _, by := range []handle{h, there} {
		pub, err := outbox.NewPublisher(by.db, outbox.PublisherConfig{}, nil)
		require.NoError(t, err)
		seen.take()
		for range 20 {
			require.NoError(t, outbox.InTx(t.Context(), by.db, func(ctx context.Context) error {
				return pub.PublishContext(ctx, "elsewhere", message.NewMessage(watermill.NewUUID(), nil))
			}))
		}
		heard(by, "after the publishes of "+fmt.Sprintf("%p", by.db))
		drain(t, d)
		assert.LessOrEqual(t, claimsSeen(seen.take()), 8, "claims for one message and 20 publishes")
	}
}

// TestAMessageWakesTheSubscriptionOfItsTopic, and not those of 49 other topics.
func TestAMessageWakesTheSubscriptionOfItsTopic(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	var seen statementLog
	url := newMigratedDatabase(t)
	h := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	s := storeOn(t, h, quickStore())
	sub, err := queue.NewSubscriber(s, queue.SubscriberConfig{PollInterval: time.Hour}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	var handled atomic.Int64
	const topics, messages = 50, 10
	for i := range topics {
		msgs, err := sub.Subscribe(t.Context(), fmt.Sprint("topic", i))
		require.NoError(t, err)
		go func() {
			for msg := range msgs {
				handled.Add(1)
				msg.Ack()
			}
		}()
	}
	for n, by := range []handle{h, newPgxHandle(t, url)} {
		there := storeOn(t, by, quickStore())
		for i := range topics { // all have polled, including those woken by the start of LISTEN
			before := handled.Load()
			storeAll(t, there, items(fmt.Sprint("topic", i), n+1)[n])
			eventually(t, func() bool { return handled.Load() > before }, "topic %d is handled", i)
		}
		eventually(t, func() bool { return h.count(t, "select count(*) from inbox_queue where state <> 'done'") == 0 },
			"all are done")
		seen.take()
		for i := range messages {
			before := handled.Load()
			storeAll(t, there, items(fmt.Sprint("topic", i), n+3)[n+2])
			eventually(t, func() bool { return handled.Load() > before }, "it is handled")
		}
		assert.LessOrEqual(t, claimsSeen(seen.take()), 6*messages, "claims for %d messages", messages)
	}
}
