package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
)

func TestOutcomesWaitsBeforeANack(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		logger := watermill.NewCaptureLogger()
		mws, err := middleware.Stack(newOutboxPublisher(t, h), middleware.StackConfig{
			Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"}, Outbox: middleware.OutboxConfig{Topic: "events"},
		}, logger)
		require.NoError(t, err)
		msg := newMessage("")
		begun := time.Now()
		for range 3 {
			_, err := chain(failing(book(h), errHandler), mws...)(msg.Copy())
			require.ErrorIs(t, err, errHandler)
		}
		assert.GreaterOrEqual(t, time.Since(begun), 8*(100+200+400)*time.Millisecond/10, "by default")
		assert.Empty(t, logger.Captured()[watermill.ErrorLogLevel], "an attempt is no error line")
		assert.Len(t, logger.Captured()[watermill.DebugLogLevel], 3)
	})
}

// The wait follows the failures that were recorded, of panics as well, and is none for what our Subscriber delivered.
func TestOutcomesBackoff(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		var waits []int
		mws := stack(t, h, middleware.StackConfig{Outcomes: middleware.OutcomesConfig{
			Backoff: outbox.Backoff{Func: func(n int) time.Duration { waits = append(waits, n); return 0 }},
		}})
		msg := newMessage("")
		fail := chain(failing(book(h), errHandler), mws...)
		for range 2 {
			_, err := fail(msg.Copy())
			require.ErrorIs(t, err, errHandler)
		}
		require.Panics(t, func() {
			_, _ = chain(func(*message.Message) ([]*message.Message, error) { panic("boom") }, mws...)(msg.Copy())
		})
		signed := msg.Copy()
		signed.SetContext(core.WithDelivery(t.Context(), signed, core.Delivery{ID: 7, Topic: "events"}, false))
		_, err := fail(signed)
		require.ErrorIs(t, err, errHandler)
		_, err = chain(failing(book(h), errHandler), mws...)(newMessage(""))
		require.ErrorIs(t, err, errHandler)
		_, err = chain(failing(book(h), outbox.Poison(errHandler)), mws...)(newMessage(""))
		require.NoError(t, err)
		assert.Equal(t, []int{1, 2, 3, 1}, waits)
	})
}

func TestTheWaitEndsWithTheRouter(t *testing.T) {
	h := onPgx(t)
	waiting := make(chan struct{}, 1)
	cfg := middleware.StackConfig{Outcomes: middleware.OutcomesConfig{
		Backoff: outbox.Backoff{Func: func(int) time.Duration { waiting <- struct{}{}; return 24 * time.Hour }},
	}}
	f := newFeed()
	router := startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), cfg, nil)...)
		r.AddConsumerHandler("fails", "orders", f, func(*message.Message) error { return errHandler })
	})
	msg := newMessage("")
	f.messages <- msg
	<-waiting
	require.NoError(t, router.Close())
	assert.False(t, settled(t, msg))
	assert.Equal(t, 1, h.count(t, "select attempts from inbox"), "the failure is recorded")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	msg = newMessage("")
	msg.SetContext(ctx)
	_, err := chain(failing(func(*message.Message) ([]*message.Message, error) {
		return nil, nil
	}, errHandler), stack(t, h, cfg)...)(msg)
	require.ErrorIs(t, err, errHandler)
}

// Ten failures within an hour, or a few over a long time, are an outage; both together are a message that cannot be
// handled.
func TestOutcomesDeadByDefault(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		mws := stack(t, h, middleware.StackConfig{})
		msg := newMessage("")
		fails := chain(func(*message.Message) ([]*message.Message, error) { return nil, errHandler }, mws...)
		state := func() string {
			return value[string](t, h, "select attempts || case when dead_at is null then '' else ' dead' end from inbox")
		}
		for range 11 {
			_, err := fails(msg.Copy())
			require.ErrorIs(t, err, errHandler)
		}
		assert.Equal(t, "11", state())
		h.exec(t, "update inbox set attempts = 8, received_at = received_at - interval '61 minutes'")
		_, err := fails(msg.Copy())
		require.ErrorIs(t, err, errHandler)
		assert.Equal(t, "9", state())
		_, err = fails(msg.Copy())
		require.NoError(t, err)
		assert.Equal(t, "10 dead", state())

		require.True(t, revived(t, h, "shop/test", msg.UUID))
		h.exec(t, "update inbox set attempts = 50")
		_, err = fails(msg.Copy())
		require.ErrorIs(t, err, errHandler, "the hour begins anew")
	})
}
