package integration_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

// inboxRow returns the state of a message as "attempts state error".
func inboxRow(t testing.TB, h handle, msg *message.Message) string {
	t.Helper()
	rows := column[string](t, h, `select attempts || case when processed_at is not null then ' processed' else '' end
		|| case when dead_at is not null then ' dead' else '' end || coalesce(' ' || last_error, '') from inbox where message_id = $1`, msg.UUID)
	require.LessOrEqual(t, len(rows), 1)
	return strings.Join(rows, "")
}

// A copy that fails after another one was processed changes nothing in the row.
func TestErrorHandlerLeavesProcessedMessagesAlone(t *testing.T) {
	h := onPgx(t)
	obs, logger := &seen{}, watermill.NewCaptureLogger()
	mws := stackFor(t, newOutboxPublisher(t, h.seenBy(t, obs)), middleware.StackConfig{
		Inbox: middleware.InboxConfig{Consumer: "test"}, Outbox: middleware.OutboxConfig{Topic: "events"},
	}, logger)
	for name, failure := range map[string]error{"failed": errHandler, "poisoned": outbox.Poison(errHandler)} {
		msg := newMessage("")
		// The copy fails after its transaction was rolled back and the other one's committed: between Tx and
		// ErrorHandler.
		meanwhile := func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				produced, err := next(m)
				_, copyErr := chain(book(h), mws...)(msg.Copy())
				require.NoError(t, copyErr)
				return produced, err
			}
		}
		slow := append([]message.HandlerMiddleware{mws[0], meanwhile}, mws[1:]...)
		_, err := chain(failing(book(h), failure), slow...)(msg.Copy())
		if name == "failed" {
			require.ErrorIs(t, err, errHandler)
		} else {
			require.NoError(t, err)
		}
		assert.Equal(t, "0 processed", inboxRow(t, h, msg), name)
		assert.Equal(t, 1, effects(t, h, msg), name)
		outcome := map[string]observe.Outcome{"failed": observe.Failed, "poisoned": observe.Duplicate}[name]
		assert.Equal(t, []observe.Outcome{observe.Processed, outcome}, obs.outcomes(), name)
		obs.all = nil
	}
	assert.Empty(t, logger.Captured()[watermill.ErrorLogLevel], "no dead letter was written")
	assert.Zero(t, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
}

func TestPoisonInARouter(t *testing.T) {
	h := onPgx(t)
	f, logger := newFeed(), watermill.NewCaptureLogger()
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
			ErrorHandler: middleware.ErrorHandlerConfig{DeadLetterTopic: "dead"},
		}, logger)...)
		r.AddConsumerHandler("book-order", "orders", f, func(*message.Message) error { return outbox.Poison(errHandler) })
	})
	msg := newMessage("payload")
	msg.Metadata.Set("m", "1")
	assert.True(t, f.deliver(t, msg))
	assert.Equal(t, msg.UUID+" shop dead payload 1 poison message: the handler failed",
		value[string](t, h, `select concat_ws(' ', metadata->>'uuid_poisoned', metadata->>'service_poisoned', topic,
			convert_from(payload, 'UTF8'), metadata->>'m', metadata->>'reason_poisoned') from outbox`))
	assert.True(t, f.deliver(t, message.NewMessage("", []byte("no id"))), "not nacked forever")
	assert.Equal(t, 2, h.count(t, `select count(*) from outbox where topic = 'dead' and uuid <> ''
		and metadata->>'topic_poisoned' = 'orders' and metadata->>'handler_poisoned' = 'book-order'`))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where dead_at is not null"))
	lines := logger.Captured()[watermill.ErrorLogLevel]
	require.Len(t, lines, 2, "neither is also reported as retried")
	for i, uuid := range []any{msg.UUID, nil} {
		assert.Contains(t, lines[i].Msg, "message died")
		assert.Equal(t, "orders", lines[i].Fields["topic"])
		assert.Equal(t, uuid, lines[i].Fields["message_uuid"])
	}
	assert.Equal(t, "integration_test.feed", lines[1].Fields["subscriber_name"], "the consumer identifies it")
}

// Failures before Inbox, or without one, are not recorded, but poison messages still get a dead letter.
func TestErrorHandlerWithoutInbox(t *testing.T) {
	h := onPgx(t)
	errorHandler, err := middleware.ErrorHandler(h.db, middleware.ErrorHandlerConfig{
		Service: "shop", MaxAttempts: 1, MinDeadAge: -1, Backoff: outbox.Backoff{Initial: -1},
	}, nil)
	require.NoError(t, err)
	mws := []message.HandlerMiddleware{errorHandler, newTx(t, h, middleware.TxConfig{})}
	msg := newMessage("")
	produced, err := chain(book(h), mws...)(msg)
	require.NoError(t, err)
	assert.Len(t, produced, 1)
	_, err = chain(failing(book(h), errHandler), mws...)(msg)
	require.ErrorIs(t, err, errHandler)
	_, err = chain(failing(book(h), outbox.ErrAlreadyProcessed), mws...)(msg)
	require.NoError(t, err)
	for range 2 { // the ack was lost
		_, err = chain(failing(book(h), outbox.Poison(errHandler)), mws...)(msg)
		require.NoError(t, err)
	}
	assert.Equal(t, 1, effects(t, h, msg))
	assert.Zero(t, h.count(t, "select count(*) from inbox"))
	assert.Equal(t, []string{"dead_letters", "dead_letters"}, column[string](t, h, "select topic from outbox"))
	assert.Equal(t, 1, h.count(t, "select count(distinct uuid) from outbox"), "the same death has the same dead letter")
}

func TestErrorHandlerStoresAnyMessageAndError(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		msg := newMessage("\x00\xff")
		msg.Metadata.Set("bad", "a\x00b\xff")
		msg.Metadata.Set("outbox_key", strings.Repeat("k", 10_000))
		outbox.SetAggregate(msg, "order", strings.Repeat("7", 10_000))
		mws := stack(t, h, middleware.StackConfig{})
		nasty := errors.New("\x00\xff" + strings.Repeat("ä", 5000))
		_, err := chain(func(*message.Message) ([]*message.Message, error) { return nil, nasty }, mws...)(msg)
		require.ErrorIs(t, err, nasty)
		assert.LessOrEqual(t, h.count(t, "select octet_length(last_error) from inbox"), 1024)

		_, err = chain(func(*message.Message) ([]*message.Message, error) { return nil, outbox.Poison(nasty) }, mws...)(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, outboxed(t, h))
		assert.Equal(t, []byte("\x00\xff"), value[[]byte](t, h, "select payload from outbox"))
	})
}

// TestFailureWhileTheRouterCloses is recorded although the message's context has ended.
func TestFailureWhileTheRouterCloses(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		f := newFeed()
		started := make(chan struct{})
		router := startRouter(t, func(r *message.Router) {
			contexts := make(chan context.Context, 1)
			r.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					contexts <- msg.Context()
					return next(msg)
				}
			})
			r.AddMiddleware(stack(t, h, middleware.StackConfig{})...)
			r.AddConsumerHandler("h", "in", f, func(*message.Message) error {
				close(started)
				<-(<-contexts).Done()
				return errHandler
			})
		})
		msg := newMessage("")
		f.messages <- msg
		<-started
		require.NoError(t, router.Close())
		assert.False(t, settled(t, msg))
		assert.Equal(t, 1, h.count(t, "select attempts from inbox where message_id = $1 "+
			"and last_error like '%the handler failed%'", msg.UUID))
	})
}

func TestErrorHandlerWaitsBeforeANack(t *testing.T) {
	h := onPgx(t)
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
	assert.Empty(t, logger.Captured()[watermill.ErrorLogLevel], "an attempt is not logged as an error")
	assert.Len(t, logger.Captured()[watermill.DebugLogLevel], 3)
}

func TestTheWaitEndsWithTheRouter(t *testing.T) {
	h := onPgx(t)
	waiting := make(chan struct{}, 1)
	cfg := middleware.StackConfig{ErrorHandler: middleware.ErrorHandlerConfig{
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
}

// Ten failures within an hour, or a few over a long time, are an outage; ten over a long time are a message that cannot
// be handled.
func TestErrorHandlerDeadByDefault(t *testing.T) {
	h := onPgx(t)
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
	require.ErrorIs(t, err, errHandler, "the hour starts again")
}
