package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

// mortal makes a message dead at its first failure.
var mortal = middleware.OutcomesConfig{
	MaxAttempts: 1, MinDeadAge: -1, Backoff: outbox.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond},
}

// busyOnce is a handler that writes and asks for a later retry, and succeeds from its second call on. It notes when it
// was called.
type busyOnce struct {
	h    handle
	wait time.Duration

	mu    sync.Mutex
	calls []time.Time
}

func (b *busyOnce) handle(ctx context.Context, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, time.Now())
	if err := b.h.execTx(ctx, "insert into effects (message_id) values ($1)", id); err != nil || len(b.calls) > 1 {
		return err
	}
	return outbox.RetryAfter(errHandler, b.wait)
}

// check looks at what there is when the message was handled.
func (b *busyOnce) check(t *testing.T, id string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if assert.Len(t, b.calls, 2) {
		assert.GreaterOrEqual(t, b.calls[1].Sub(b.calls[0]), b.wait, "not before the time was up")
	}
	assert.Equal(t, 1, b.h.count(t, "select count(*) from effects where message_id = $1", id))
	assert.Zero(t, b.h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
}

// TestRetryAfterOnABroker that brings back at once what was nacked.
func TestRetryAfterOnABroker(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		obs, f := &seen{}, newFeed()
		busy := &busyOnce{h: h, wait: 200 * time.Millisecond}
		startRouter(t, func(r *message.Router) {
			r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h.seenBy(t, obs)), middleware.StackConfig{Outcomes: mortal},
				nil)...)
			r.AddConsumerHandler("h", "orders", f, func(msg *message.Message) error {
				return busy.handle(msg.Context(), msg.UUID)
			})
		})
		msg := newMessage("")
		deliveries := 1
		for ; !f.deliver(t, msg.Copy()); deliveries++ {
		}
		assert.Greater(t, deliveries, 2, "OutcomesConfig.Backoff.Max is the longest wait with a message in hand")
		busy.check(t, msg.UUID)
		assert.Equal(t, "0 processed", inboxRow(t, h, msg))
		assert.Equal(t, []observe.Outcome{observe.Postponed, observe.Processed}, obs.outcomes())
	})
}

// TestRetryAfterOfAStoredMessage has the database wait, and no attempt charged, with a Dispatcher and behind a Router
// with Outcomes or with Tx alone.
func TestRetryAfterOfAStoredMessage(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	newEffects(t, h)
	obs := &seen{}
	h = h.seenBy(t, obs)
	cfg := quickStore()
	cfg.MaxAttempts = 1
	s := storeOn(t, h, cfg)
	handlers := map[string]func(ctx context.Context, id string) error{}
	for _, topic := range []string{"dispatched", "detached", "stack", "tx"} {
		handlers[topic] = (&busyOnce{h: h, wait: time.Hour}).handle
	}
	detached := false
	handlers["detached"] = func(ctx context.Context, id string) error {
		if detached {
			return nil
		}
		detached = true
		return outbox.RetryAfter(errHandler, time.Hour)
	}
	of := func(topic string) queue.Handler {
		return queue.Handler{Detached: topic == "detached", Handle: func(ctx context.Context, msg *queue.Message) error {
			return handlers[topic](ctx, msg.MessageID)
		}}
	}
	dispatching(t, s, quickDispatcher(map[string]queue.Handler{
		"dispatched": of("dispatched"), "detached": of("detached"),
	}))
	for topic, mws := range map[string][]message.HandlerMiddleware{
		"stack": stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{Outcomes: mortal}, nil),
		"tx":    {newTx(t, h, middleware.TxConfig{}), newInbox(t, h, middleware.InboxConfig{})},
	} {
		sub, err := queue.NewSubscriber(s, queue.SubscriberConfig{PollInterval: 20 * time.Millisecond}, nil)
		require.NoError(t, err)
		startRouter(t, func(r *message.Router) {
			r.AddMiddleware(mws...)
			r.AddConsumerHandler(topic, topic, sub, func(msg *message.Message) error {
				return handlers[topic](msg.Context(), msg.UUID)
			})
		})
	}
	for topic := range handlers {
		storeAll(t, s, items(topic, 1)...)
	}
	for topic := range handlers {
		id := itemID(topic, 0)
		eventually(t, func() bool {
			msg, err := s.Get(t.Context(), id)
			return err == nil && time.Until(msg.DueAt) > 50*time.Minute
		}, "%s: it is put off", topic)
		state, attempts := stateOf(t, s, id)
		assert.Equal(t, queue.Processing, state, topic)
		assert.Zero(t, attempts, topic)
		msg, err := s.Get(t.Context(), id)
		require.NoError(t, err)
		assert.Contains(t, msg.LastError, errHandler.Error(), topic)
		assert.Zero(t, h.count(t, "select count(*) from effects where message_id = $1", id.MessageID), topic)
	}
	for _, end := range obs.all {
		assert.Equal(t, observe.Postponed, end.Outcome, end.Topic)
	}
	h.exec(t, "update inbox_queue set due_at = now()")
	for topic := range handlers {
		untilState(t, s, itemID(topic, 0), queue.Done)
	}
	assert.Equal(t, 3, h.count(t, "select count(*) from effects"))
	assert.Zero(t, h.count(t, "select count(*) from outbox"))
}

// TestRetryAfterBehindAnOutbox holds the message, and so its key: a nack would be charged.
func TestRetryAfterBehindAnOutbox(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	newEffects(t, h)
	cfg := subscribing(quickConfig())
	cfg.MaxAttempts, cfg.MinDeadAge = 1, -1
	busy := &busyOnce{h: h, wait: 100 * time.Millisecond}
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{Outcomes: mortal}, nil)...)
		r.AddConsumerHandler("h", "orders", startSubscriber(t, h, cfg), func(msg *message.Message) error {
			return busy.handle(msg.Context(), "order")
		})
	})
	h.publish(t, "orders", "", "order")
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is not null") == 1 },
		"it is handled")
	busy.check(t, "order")
	assert.Zero(t, h.count(t, "select attempts from outbox"))
}

// TestRetryAfterAmongOtherErrors: what is poison or done is not put off.
func TestRetryAfterAmongOtherErrors(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	mws := stack(t, h, middleware.StackConfig{})
	handled := func(err error) error {
		_, got := chain(func(*message.Message) ([]*message.Message, error) { return nil, err }, mws...)(newMessage(""))
		return got
	}
	require.NoError(t, handled(outbox.RetryAfter(outbox.Poison(errHandler), time.Hour)))
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
	require.NoError(t, handled(outbox.Poison(outbox.RetryAfter(errHandler, time.Hour))))
	assert.Equal(t, 2, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
	require.NoError(t, handled(outbox.RetryAfter(outbox.ErrAlreadyProcessed, time.Hour)))
	assert.Equal(t, 2, h.count(t, "select count(*) from inbox where dead_at is not null"))

	w := &fakeWork{h: h, last: true}
	_, err := chain(func(*message.Message) ([]*message.Message, error) {
		return nil, outbox.RetryAfter(errHandler, 0)
	}, mws[0])(w.of(t, "id"))
	require.ErrorIs(t, err, errHandler)
	var later *outbox.RetryAfterError
	require.ErrorAs(t, w.notes[0], &later)
	assert.NotErrorIs(t, w.notes[0], core.ErrNotBegun)
	assert.Zero(t, w.acks, "and not dead, although it was the last attempt")
	assert.NoError(t, outbox.RetryAfter(nil, time.Hour))
}
