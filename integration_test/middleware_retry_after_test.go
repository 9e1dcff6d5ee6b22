package integration_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

// mortal makes a message dead at its first failure.
var mortal = middleware.ErrorHandlerConfig{
	MaxAttempts: 1, MinDeadAge: -1, Backoff: outbox.Backoff{Initial: time.Millisecond, Max: 20 * time.Millisecond},
}

// TestRetryAfterOnABroker that redelivers a nacked message immediately. ErrorHandlerConfig.Backoff.Max is the longest
// time that a message is held, so it is delivered several times in between, unless the machine is slow: then each wait
// is longer.
func TestRetryAfterOnABroker(t *testing.T) {
	h := onPgx(t)
	deliveries := 0
	for wait := 200 * time.Millisecond; deliveries <= 2; wait *= 4 {
		require.Less(t, wait, 2*patience, "the message is held until the time is up")
		deliveries = deliveredMeanwhile(t, h, wait)
	}
}

// deliveredMeanwhile delivers a message that its handler snoozes until it is handled, and returns the number of
// deliveries.
func deliveredMeanwhile(t *testing.T, h handle, wait time.Duration) (deliveries int) {
	obs, f := &seen{}, newFeed()
	var calls []time.Time
	router := startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h.seenBy(t, obs)), middleware.StackConfig{ErrorHandler: mortal},
			nil)...)
		r.AddConsumerHandler("h", "orders", f, func(msg *message.Message) error {
			calls = append(calls, time.Now())
			if err := write(h, msg); err != nil || len(calls) > 1 {
				return err
			}
			return outbox.RetryAfter(errHandler, wait)
		})
	})
	msg := newMessage("")
	for deliveries = 1; !f.deliver(t, msg.Copy()); deliveries++ {
	}
	require.Len(t, calls, 2)
	assert.GreaterOrEqual(t, calls[1].Sub(calls[0]), wait, "not before its time")
	assert.Equal(t, 1, effects(t, h, msg))
	assert.Zero(t, outboxed(t, h), "no dead letter")
	assert.Equal(t, "0 processed", inboxRow(t, h, msg))
	assert.Equal(t, []observe.Outcome{observe.Postponed, observe.Processed}, obs.outcomes())
	require.NoError(t, router.Close())
	return deliveries
}

// TestUnchargedFailuresOfStoredMessages: behind a Dispatcher or a Subscriber, with ErrorHandler or Tx alone, a handler
// asks for a retry in an hour, or is wired wrongly. A charged failure would kill the message at once; these leave no
// trace of the attempt, and the message is done once it falls due.
func TestUnchargedFailuresOfStoredMessages(t *testing.T) {
	obs, h := &seen{}, onPgx(t)
	h = h.seenBy(t, obs)
	cfg := quickStore()
	cfg.MaxAttempts = 1
	s := storeOn(t, h, cfg)
	var mended atomic.Bool
	detached := func(context.Context, string) error {
		if mended.Load() {
			return nil
		}
		return outbox.RetryAfter(errHandler, time.Hour)
	}
	later := func(ctx context.Context, id string) error {
		if err := h.execTx(ctx, "insert into effects (message_id) values ($1)", id); err != nil {
			return err
		}
		return detached(ctx, id)
	}
	miswired := func(ctx context.Context, id string) error {
		if mended.Load() {
			return nil
		}
		return wrongKind(ctx, h)
	}
	handlers := map[string]queue.Handler{}
	for topic, handle := range map[string]func(context.Context, string) error{
		"dispatched": later, "detached": detached, "dispatched, miswired": miswired,
	} {
		handlers[topic] = queue.Handler{
			Detached: topic == "detached",
			Handle:   func(ctx context.Context, msg *queue.Message) error { return handle(ctx, msg.MessageID) },
		}
	}
	dispatching(t, s, quickDispatcher(handlers))
	stack := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{ErrorHandler: mortal}, nil)
	startRouter(t, func(r *message.Router) {
		route := func(topic string, handle func(context.Context, string) error, mws ...message.HandlerMiddleware) {
			r.AddConsumerHandler(topic, topic, subscriberOn(t, s, quickSubscriber()), func(msg *message.Message) error {
				return handle(msg.Context(), msg.UUID)
			}).AddMiddleware(mws...)
		}
		route("stack", later, stack...)
		route("tx", later, txInbox(t, h, middleware.InboxConfig{})...)
		route("stack, miswired", miswired, stack...)
	})
	topics := []string{"dispatched", "detached", "dispatched, miswired", "stack", "tx", "stack, miswired"}
	for _, topic := range topics {
		storeAll(t, s, items(topic, 1)...)
	}
	for _, topic := range topics {
		cause, wait := errHandler, 50*time.Minute
		if strings.Contains(topic, "miswired") {
			cause, wait = outbox.ErrTxKind, 0
		}
		msg := untilMessage(t, s, itemID(topic, 0), "waits", func(msg queue.Message) bool {
			return strings.Contains(msg.LastError, cause.Error()) && time.Until(msg.DueAt) > wait
		})
		assert.Equal(t, queue.Processing, msg.State, topic)
		assert.Zero(t, msg.Attempts, topic)
	}
	eventually(t, func() bool {
		postponed := 0
		for _, end := range obs.ends() {
			assert.Equal(t, !errors.Is(end.Err, outbox.ErrTxKind), end.Outcome == observe.Postponed, end.Topic)
			if end.Outcome == observe.Postponed {
				postponed++
			}
		}
		return postponed == 4
	}, "observers are notified")
	assert.Zero(t, h.count(t, "select count(*) from effects"))
	mended.Store(true)
	h.exec(t, "update inbox_queue set due_at = now() where owner is null")
	for _, topic := range topics {
		untilState(t, s, itemID(topic, 0), queue.Done)
	}
	assert.Equal(t, 3, h.count(t, "select count(*) from effects"))
	assert.Zero(t, outboxed(t, h))
}

// TestRetryAfterBehindAnOutbox: the database keeps the message until its retry, which blocks its key, also in another
// process, and nothing else. The retry counts as an attempt, but not against the message; nor does wrong wiring.
func TestRetryAfterBehindAnOutbox(t *testing.T) {
	h := onPgx(t)
	cfg := subscribing(quickConfig())
	cfg.Forwarder.MaxAttempts, cfg.Forwarder.MinDeadAge, cfg.Forwarder.Concurrency = 1, -1, 1
	cfg.Forwarder.CleanInterval = 50 * time.Millisecond
	handled, miswired := make(chan string, 10), make(chan bool, 1000)
	var busy atomic.Int32
	start := func() (stop func()) {
		sub := startSubscriber(t, h, cfg)
		router := startRouter(t, func(r *message.Router) {
			r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{ErrorHandler: mortal}, nil)...)
			r.AddConsumerHandler("h", "orders", sub, func(msg *message.Message) error {
				if string(msg.Payload) == "busy" && busy.Add(1) <= 2 {
					return outbox.RetryAfter(errHandler, time.Hour)
				}
				handled <- string(msg.Payload)
				return nil
			})
			r.AddConsumerHandler("m", "miswired", startSubscriber(t, h, cfg), func(msg *message.Message) error {
				miswired <- true
				return wrongKind(msg.Context(), h)
			})
		})
		return func() { require.NoError(t, router.Close()) }
	}
	waits := func(times int32) {
		t.Helper()
		eventually(t, func() bool {
			return busy.Load() == times && h.count(t, `select count(*) from outbox where attempts = 1 and dead_at is null
				and last_error like '%handler failed' and due_at > now() + interval '50 minutes'`) == 1
		}, "it waits in the database")
	}
	stop := start()
	h.publish(t, "miswired", "", "order")
	for range 3 {
		within(t, "the wrongly wired handler is called again", miswired)
	}
	h.publish(t, "orders", "K", "busy", "next")
	waits(1)
	h.publish(t, "orders", "L", "other")
	assert.Equal(t, "other", within(t, "another key is handled", handled))
	h.exec(t, "update outbox set due_at = now() where last_error is not null")
	waits(2)
	stop()
	start()
	h.publish(t, "orders", "L", "another")
	assert.Equal(t, "another", within(t, "another key is handled", handled))
	h.exec(t, "update outbox set due_at = now() where last_error is not null")
	assert.Equal(t, "busy", within(t, "it is handled", handled))
	assert.Equal(t, "next", within(t, "its key continues", handled))
	assert.Zero(t, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
	assert.Equal(t, 1, h.count(t, "select attempts from outbox where topic = 'miswired'"), "the first blocks the key")
}

// fakeWork is claimed work whose settlements are rows in the table of effects.
type fakeWork struct {
	h             handle
	lost, last    bool
	failures      []error
	acks, unacked int
}

func (w *fakeWork) settle(ctx context.Context, how string) (bool, error) {
	w.acks++
	return !w.lost, w.h.execTx(ctx, `insert into effects (message_id, note) values ('work', $1)`, how)
}

func (w *fakeWork) Ack(ctx context.Context) (bool, error)                    { return w.settle(ctx, "acked") }
func (w *fakeWork) Unack(context.Context) error                              { w.unacked++; return nil }
func (w *fakeWork) Dead(ctx context.Context, _ string) (bool, error)         { return w.settle(ctx, "dead") }
func (w *fakeWork) Failed() bool                                             { return false }
func (w *fakeWork) AckAll(context.Context, []core.Work) ([]core.Work, error) { return nil, nil }
func (w *fakeWork) Last() bool                                               { return w.last }
func (w *fakeWork) SetFailure(err error)                                     { w.failures = append(w.failures, err) }

// of returns a message with this work.
func (w *fakeWork) of(t testing.TB, id string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.SetContext(core.WithWork(t.Context(), msg, w))
	return msg
}

// TestClaimedWork is settled in the transaction of its handler, or of its dead letter.
func TestClaimedWork(t *testing.T) {
	h := onPgx(t)
	seen := &seen{}
	h = h.seenBy(t, seen)
	stack := stack(t, h, middleware.StackConfig{})
	handled := func(handler message.HandlerFunc, w *fakeWork) error {
		t.Helper()
		h.exec(t, "truncate effects, outbox, inbox")
		seen.all = nil
		_, err := chain(handler, stack...)(w.of(t, "id"))
		return err
	}
	notes := func() []string { return column[string](t, h, "select note from effects order by note") }

	w := &fakeWork{h: h}
	require.NoError(t, handled(book(h), w))
	assert.Equal(t, []string{"", "acked"}, notes(), "the ack commits with the handler's writes")
	assert.Equal(t, 1, outboxed(t, h))
	assert.Zero(t, h.count(t, "select count(*) from inbox"), "and replaces the inbox row")

	w = &fakeWork{h: h, lost: true, last: true}
	require.ErrorIs(t, handled(book(h), w), core.ErrLeaseLost)
	assert.Empty(t, notes(), "nothing for a message with another owner")
	assert.Zero(t, outboxed(t, h), "not even a dead letter")

	w = &fakeWork{h: h}
	require.ErrorIs(t, handled(failing(book(h), errHandler), w), errHandler)
	assert.Empty(t, notes())
	require.Len(t, w.failures, 1)
	require.ErrorIs(t, w.failures[0], errHandler)

	w = &fakeWork{h: h, last: true}
	require.ErrorIs(t, handled(failing(book(h), outbox.RetryAfter(errHandler, 0)), w), errHandler)
	var later *core.RetryAfterError
	require.ErrorAs(t, w.failures[0], &later)
	assert.NotErrorIs(t, w.failures[0], core.ErrNotBegun)
	assert.Empty(t, notes(), "and not dead, although it was the last attempt")
	require.NoError(t, outbox.RetryAfter(nil, time.Hour))

	poison := failing(book(h), outbox.Poison(errHandler))
	require.NoError(t, handled(poison, &fakeWork{h: h}))
	assert.Equal(t, []string{"dead"}, notes())
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
	require.NoError(t, handled(failing(book(h), errHandler), &fakeWork{h: h, last: true}), "its last attempt")
	assert.Equal(t, []string{"dead"}, notes())
	h.exec(t, "alter table outbox add constraint refused check (topic <> 'dead_letters') not valid")
	require.Error(t, handled(poison, &fakeWork{h: h}))
	assert.Empty(t, notes(), "neither dead nor a dead letter")
	h.exec(t, "alter table outbox drop constraint refused")

	// Another owner has it by the time that it dies.
	late := &fakeWork{h: h}
	require.NoError(t, handled(func(*message.Message) ([]*message.Message, error) {
		late.lost = true
		return nil, outbox.Poison(errHandler)
	}, late))
	assert.Equal(t, []observe.Outcome{observe.Duplicate}, seen.outcomes())
	assert.Zero(t, outboxed(t, h))

	w = &fakeWork{h: h}
	err := handled(func(msg *message.Message) ([]*message.Message, error) {
		return nil, h.execFirst(msg.Context(), "commit")
	}, w)
	require.ErrorIs(t, err, outbox.ErrTxEnded)
	assert.Equal(t, 1, w.unacked, "the ack that the handler committed is undone")
}

// TestClaimedWorkTwice: a message passes two Inboxes, and the handler gets an error that names the cause.
func TestClaimedWorkTwice(t *testing.T) {
	h := onPgx(t)
	w := &fakeWork{h: h}
	_, err := chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}),
		newInbox(t, h, middleware.InboxConfig{}), newInbox(t, h, middleware.InboxConfig{}))(w.of(t, "id"))
	require.ErrorContains(t, err, "add middleware.Inbox once")
	require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		msg := message.NewMessage("id", nil)
		msg.SetContext(core.WithWork(ctx, msg, w))
		_, err := chain(bookSilently(h), newInbox(t, h, middleware.InboxConfig{}))(msg)
		return err
	}), "it needs only a transaction around it")
}

// TestClaimedWorkOfAnotherDatabase is recorded in the inbox like any other message.
func TestClaimedWorkOfAnotherDatabase(t *testing.T) {
	parallel(t)
	h, other := newPgxHandle(t, newMigratedDatabase(t)), newPgxHandle(t, newMigratedDatabase(t))
	w := &elsewhere{fakeWork{h: other}}
	msg := message.NewMessage("id", nil)
	msg.SetContext(core.WithWork(t.Context(), msg, w))
	_, err := chain(book(h), stack(t, h, middleware.StackConfig{})...)(msg)
	require.NoError(t, err)
	assert.Equal(t, 1, effects(t, h, msg))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is not null"))
}

// elsewhere is work of another database: it finds no transaction to settle in.
type elsewhere struct{ fakeWork }

func (w *elsewhere) Ack(ctx context.Context) (bool, error) {
	_, err := (*core.DB)(w.h.db).Tx(ctx)
	return false, err
}

// TestClaimedWorkStaysWithItsHandler: an in-process Pub/Sub passes on the context, but not the work.
func TestClaimedWorkStaysWithItsHandler(t *testing.T) {
	h := onPgx(t)
	pubsub := gochannel.NewGoChannel(gochannel.Config{PreserveContext: true}, watermill.NopLogger{})
	t.Cleanup(func() { assert.NoError(t, pubsub.Close()) })
	inner, err := pubsub.Subscribe(t.Context(), "inner")
	require.NoError(t, err)
	w := &fakeWork{h: h}
	relayed := make(chan error, 1)
	go func() {
		msg := <-inner
		_, err := chain(bookSilently(h), stack(t, h, middleware.StackConfig{})...)(msg)
		msg.Ack()
		relayed <- err
	}()
	_, err = chain(func(msg *message.Message) ([]*message.Message, error) {
		out := message.NewMessage("inner", nil)
		out.SetContext(outbox.OutsideTx(msg.Context()))
		return nil, errors.Join(pubsub.Publish("inner", out), write(h, msg))
	}, stack(t, h, middleware.StackConfig{})...)(w.of(t, "outer"))
	require.NoError(t, err)
	require.NoError(t, <-relayed)
	assert.Equal(t, 1, w.acks)
	assert.Equal(t, []string{"inner", "outer", "work"}, column[string](t, h, "select message_id from effects order by 1"))
}
