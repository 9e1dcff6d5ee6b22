package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

func quickSubscriber() queue.SubscriberConfig {
	return queue.SubscriberConfig{PollInterval: 20 * time.Millisecond, CloseTimeout: patience}
}

func subscriberOn(t testing.TB, s *queue.Store, cfg queue.SubscriberConfig) *queue.Subscriber {
	t.Helper()
	sub, err := queue.NewSubscriber(s, cfg, newLogCapture(t))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, sub.Close()) })
	return sub
}

// TestPubSubOfInbox runs Watermill's suite on a Publisher that stores and our Subscriber of stored messages.
func TestPubSubOfInbox(t *testing.T) {
	extended(t)
	if !runSuite(t, "TestConsumerGroups", "TestNewSubscriberReceivesOldMessages", "TestNoAck",
		"TestPublishSubscribeInOrder", "TestReconnect") {
		return
	}
	suiteLeaks(t)
	h := newSuiteHandle(t)
	construct := func(t *testing.T) (message.Publisher, message.Subscriber) {
		s := storeOn(t, h, quickStore())
		cfg := quickSubscriber()
		cfg.DisableListen = true
		cfg.CloseTimeout = 5 * time.Second
		sub, err := queue.NewSubscriber(s, cfg, watermill.NewStdLogger(false, false))
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, sub.Close()) }) // the suite does not close all of them
		return &closing{Publisher: newQueuePublisher(t, s, outbox.OwnTx)}, sub
	}
	tests.TestPubSub(t, tests.Features{Persistent: true}, construct, nil)
}

// TestStoredMessagesThroughARouter: with the stack a message is marked done together with its handler's writes, and
// dead together with its dead letter.
func TestStoredMessagesThroughARouter(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		cfg := quickStore()
		cfg.MaxAttempts = 3
		s := storeOn(t, h, cfg)
		storeAll(t, s, items("orders", 20)...)
		storeAll(t, s, append(items("poison", 1), items("failing", 1)...)...)
		startRouter(t, func(r *message.Router) {
			pub := newOutboxPublisher(t, h)
			r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
			sub := subscriberOn(t, s, quickSubscriber())
			r.AddHandler("orders", "orders", sub, "booked", pub, book(h))
			r.AddHandler("poison", "poison", sub, "booked", pub, failing(book(h), outbox.Poison(errHandler)))
			r.AddHandler("failing", "failing", sub, "booked", pub, failing(book(h), errHandler))
		})
		eventually(t, func() bool {
			return h.count(t, "select count(*) from inbox_queue where state = 'done'") == 20 &&
				h.count(t, "select count(*) from inbox_queue where state = 'dead'") == 2
		}, "all are settled")
		assert.Equal(t, 20, h.count(t, "select count(*) from effects"))
		assert.Equal(t, 20, h.count(t, "select count(distinct message_id) from effects"))
		assert.Equal(t, 20, h.count(t, "select count(*) from outbox where topic = 'booked'"))
		assert.Equal(t, 2, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
		assert.Zero(t, h.count(t, "select count(*) from inbox"),
			"a stored message is recorded only in the queue")
		failed := got(t, s, itemID("failing", 0))
		assert.Equal(t, 3, failed.Attempts)
		assert.Equal(t, errHandler.Error(), failed.LastError)
	})
}

// TestStoredMessageOfAContext: a Router's handler sees the stored data of its message, with or without the stack, and
// messages that it publishes in-process do not carry it along.
func TestStoredMessageOfAContext(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	orders, bare := items("orders", 1)[0], items("bare", 1)[0]
	orders.Key, orders.Metadata = "K", message.Metadata{"kind": "order"}
	storeAll(t, s, orders, bare)
	pubsub := inProcess(t, true)
	shown, others := make(chan queue.Message, 10), make(chan bool, 10)
	show := func(msg *message.Message) error {
		stored, ok := queue.MessageFromContext(msg.Context())
		assert.True(t, ok)
		stored.Payload[0], stored.Metadata["kind"] = 'x', "changed by the handler"
		stored, _ = queue.MessageFromContext(msg.Context())
		shown <- stored
		onwards := message.NewMessage(msg.UUID, nil)
		onwards.SetContext(msg.Context())
		if err := pubsub.Publish("onwards", onwards); err != nil {
			return err
		}
		if stored.Attempts == 0 {
			return errHandler
		}
		return nil
	}
	startRouter(t, func(r *message.Router) {
		stack := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)
		r.AddConsumerHandler("orders", "orders", subscriberOn(t, s, quickSubscriber()), show).AddMiddleware(stack...)
		r.AddConsumerHandler("bare", "bare", subscriberOn(t, s, quickSubscriber()), show)
		r.AddConsumerHandler("onwards", "onwards", pubsub, func(msg *message.Message) error {
			_, ok := queue.MessageFromContext(msg.Context())
			others <- ok
			return nil
		})
	})
	attempts := map[queue.ID][]int{}
	for range 4 {
		select {
		case msg := <-shown:
			attempts[msg.ID] = append(attempts[msg.ID], msg.Attempts)
			assert.Equal(t, queue.Processing, msg.State)
			assert.Equal(t, h.db.Name(), msg.DB)
			assert.Equal(t, "0", string(msg.Payload))
			if msg.Topic == "orders" {
				assert.Equal(t, orders.Metadata, msg.Metadata)
				assert.Equal(t, orders.Key, msg.Key)
			}
		case <-time.After(patience):
			t.Fatal("no message arrived")
		}
		assert.False(t, within(t, "it is passed on", others), "the queue's data was carried along")
	}
	assert.Equal(t, map[queue.ID][]int{orders.ID: {0, 1}, bare.ID: {0, 1}}, attempts)
	_, ok := queue.MessageFromContext(t.Context())
	assert.False(t, ok)
}

// TestStoredMessagesAcksAndNacks of a subscriber without the stack.
func TestStoredMessagesAcksAndNacks(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	one := items("orders", 1)[0]
	one.Metadata, one.Key = message.Metadata{"kind": "order"}, "K"
	storeAll(t, s, one)
	storeAll(t, s, items("other", 1)...)
	received := func(messages <-chan *message.Message) *message.Message {
		t.Helper()
		msg := receive(t, messages)
		assert.Equal(t, one.MessageID, msg.UUID)
		assert.Equal(t, "0", string(msg.Payload))
		assert.Equal(t, message.Metadata{"kind": "order", outbox.MetadataKey: "K"}, msg.Metadata)
		return msg
	}
	cfg := quickSubscriber()
	cfg.AckTimeout = 50 * time.Millisecond
	short := subscriberOn(t, s, cfg)
	messages, err := short.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	<-received(messages).Context().Done() // its ack timeout has expired
	eventually(t, func() bool { _, attempts := stateOf(t, s, one.ID); return attempts == 1 }, "the attempt is charged")
	require.NoError(t, short.Close())
	messages, err = subscriberOn(t, s, quickSubscriber()).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	received(messages).Nack()
	received(messages).Ack()
	untilState(t, s, one.ID, queue.Done)
	_, attempts := stateOf(t, s, one.ID)
	assert.Equal(t, 2, attempts)
	state, _ := stateOf(t, s, itemID("other", 0))
	assert.Equal(t, queue.Processing, state, "the message is for others")
}

// TestStoredMessagesSubscriptionEnds: unacked messages are released without a charge.
func TestStoredMessagesSubscriptionEnds(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	cfg := quickSubscriber()
	cfg.CloseTimeout = 50 * time.Millisecond
	sub := subscriberOn(t, s, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := sub.Subscribe(ctx, "orders")
	require.NoError(t, err)
	storeAll(t, s, items("orders", 3)...)
	msg := receive(t, messages)
	h.reaches(t, 3, "two wait to be received", "select count(*) from inbox_queue where owner is not null")
	cancel()
	<-msg.Context().Done()
	free := "select count(*) from inbox_queue where state = 'processing' and owner is null and attempts = 0"
	eventually(t, func() bool { return h.count(t, free) >= 2 }, "the messages are released")
	for range messages {
		t.Error("another message arrived")
	}
	assert.Equal(t, 3, h.count(t, free))
	require.NoError(t, sub.Close())
	_, err = sub.Subscribe(t.Context(), "orders")
	require.ErrorIs(t, err, outbox.ErrClosed)
	bare := subscriberOn(t, storeOn(t, newPgxHandle(t, newDatabase(t)), quickStore()), cfg)
	_, err = bare.Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, "run schema.Migrate")
}

// TestStoredMessageOfAnEndedTransaction: a handler that ends its own transaction cannot cause its message to be
// skipped.
func TestStoredMessageOfAnEndedTransaction(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	one := items("orders", 1)[0]
	one.Metadata = message.Metadata{"kind": "order"}
	storeAll(t, s, one)
	deliveries := make(chan message.Metadata, 2)
	startRouter(t, func(r *message.Router) {
		pub := newOutboxPublisher(t, h)
		r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
		r.AddHandler("orders", "orders", subscriberOn(t, s, quickSubscriber()), "booked", pub,
			func(msg *message.Message) ([]*message.Message, error) {
				deliveries <- msg.Metadata
				if len(deliveries) == 1 {
					return message.Messages{newMessage("lost")}, h.execFirst(msg.Context(), "commit")
				}
				return book(h)(msg)
			})
	})
	untilState(t, s, one.ID, queue.Done)
	eventually(t, func() bool { return outboxed(t, h) == 1 }, "the second attempt publishes")
	assert.Equal(t, one.Metadata, <-deliveries)
	assert.Equal(t, one.Metadata, <-deliveries, "all its writes are repeated")
	_, attempts := stateOf(t, s, one.ID)
	assert.Equal(t, 1, attempts)
}

// TestIngestStoresWhatABrokerDelivers and acks only after that.
func TestIngestStoresWhatABrokerDelivers(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxPayloadBytes = 100
	s := storeOn(t, h, cfg)
	ingest, err := queue.Ingest(s, queue.IngestConfig{Source: "kafka"})
	require.NoError(t, err)
	f := newFeed()
	poisoned := make(chan error, 10)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := next(msg)
				if errors.Is(err, outbox.ErrPoison) {
					poisoned <- err
					err = nil
				}
				return produced, err
			}
		})
		r.AddConsumerHandler("ingest", "orders", f, ingest)
	})
	msg := message.NewMessage("one", []byte("payload"))
	msg.Metadata = message.Metadata{"kind": "order", outbox.MetadataKey: "K"}
	require.True(t, f.deliver(t, msg))
	stored := got(t, s, queue.ID{Source: "kafka", MessageID: "one"})
	assert.Equal(t, "orders", stored.Topic)
	assert.Equal(t, "K", stored.Key)
	assert.Equal(t, "payload", string(stored.Payload))
	assert.Equal(t, msg.Metadata, stored.Metadata)
	require.True(t, f.deliver(t, message.NewMessage("one", []byte("payload"))), "a copy")
	for _, bad := range []*message.Message{
		message.NewMessage("", nil), message.NewMessage("large", make([]byte, 101)), message.NewMessage("a\x00", nil),
	} {
		require.True(t, f.deliver(t, bad))
		require.ErrorIs(t, <-poisoned, queue.ErrInvalid)
	}
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue"))

	h.exec(t, "alter table inbox_queue rename to gone")
	require.False(t, f.deliver(t, message.NewMessage("later", nil)), "it is not acked without its commit")
	h.exec(t, "alter table gone rename to inbox_queue")
	require.True(t, f.deliver(t, message.NewMessage("later", nil)))
}

// TestIngestFailsSlowly: a broker immediately redelivers messages that cannot be stored, so Ingest waits, longer each
// time, unless it is inside ErrorHandler, which gives up on them with a dead letter.
func TestIngestFailsSlowly(t *testing.T) {
	h := onPgx(t)
	ingest, err := queue.Ingest(storeOn(t, h, quickStore()), queue.IngestConfig{Source: "kafka"})
	require.NoError(t, err)
	nameless := func() *message.Message { return message.NewMessage("", []byte("payload")) }
	begun := time.Now()
	for range 3 {
		require.ErrorContains(t, ingest(nameless()), "IngestConfig.Item", "the cure")
	}
	assert.GreaterOrEqual(t, time.Since(begun), 8*(100+200+400)*time.Millisecond/10)

	closing, cancel := context.WithCancel(t.Context())
	cancel()
	aside, err := middleware.ErrorHandler(h.db, middleware.ErrorHandlerConfig{Service: "shop"}, nil)
	require.NoError(t, err)
	handle := chain(func(msg *message.Message) ([]*message.Message, error) { return nil, ingest(msg) }, aside)
	const deadLetters = 9
	var took []time.Duration
	for range deadLetters {
		begun = time.Now()
		msg := nameless()
		msg.SetContext(closing)
		require.ErrorIs(t, ingest(msg), outbox.ErrPoison, "the Router closes")
		_, err := handle(nameless())
		require.NoError(t, err)
		took = append(took, time.Since(begun))
	}
	assert.Less(t, slices.Min(took), 800*time.Millisecond*8/10, "waits are longer now")
	assert.Equal(t, deadLetters, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
}

// TestIngestGathers concurrent deliveries into few commits.
func TestIngestGathers(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	ingest, err := queue.Ingest(s, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
		if msg.UUID == "unwanted" {
			return queue.Item{}, fmt.Errorf("of a type without a handler: %w", queue.ErrIgnore)
		}
		return queue.Item{ID: queue.ID{Source: "kafka", MessageID: msg.UUID}, Topic: "orders", Payload: msg.Payload}, nil
	}})
	require.NoError(t, err)
	// The first statement waits for this lock, and all others gather behind it.
	lock, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), "lock table inbox_queue in exclusive mode")
	require.NoError(t, err)
	const deliveries = 50
	results := make(chan error, deliveries)
	put := func(id string) { go func() { results <- ingest(message.NewMessage(id, nil)) }() }
	put("first")
	h.reaches(t, 1, "the first statement waits", waitForQueue)
	for i := range deliveries - 2 {
		put("message-" + itoa(i))
	}
	impatient, cancel := context.WithCancel(t.Context())
	gone := message.NewMessage("gone", nil)
	gone.SetContext(impatient)
	go func() { results <- ingest(gone) }()
	cancel()
	require.ErrorIs(t, <-results, context.Canceled)
	require.NoError(t, lock.Rollback(t.Context()))
	for range deliveries - 1 {
		require.NoError(t, <-results)
	}
	require.NoError(t, ingest(message.NewMessage("unwanted", nil)), "the message is acked")
	assert.Zero(t, h.count(t, "select count(*) from inbox_queue where message_id = 'unwanted'"))
	assert.GreaterOrEqual(t, h.count(t, "select count(*) from inbox_queue"), deliveries-1)
	assert.LessOrEqual(t, h.count(t, "select count(distinct xmin::text) from inbox_queue"), 10)

	err = outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		msg := message.NewMessage("joined", nil)
		msg.SetContext(ctx)
		return errors.Join(ingest(msg), outbox.SetRollbackOnly(ctx))
	})
	require.ErrorIs(t, err, outbox.ErrRolledBack)
	assert.Zero(t, h.count(t, "select count(*) from inbox_queue where message_id = 'joined'"))
}

// TestStoredMessageIsKeptBetweenAttempts: a middleware that repeats a handler may wait any time before the next
// transaction.
func TestStoredMessageIsKeptBetweenAttempts(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	failed, again := make(chan bool), make(chan bool)
	cfg := quickSubscriber()
	cfg.LeaseTTL = 3 * time.Second
	startRouter(t, func(r *message.Router) {
		pub := newOutboxPublisher(t, h)
		r.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := next(msg)
				if err != nil {
					failed <- true
					<-again
					return next(msg)
				}
				return produced, err
			}
		})
		r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
		attempts := 0
		r.AddHandler("orders", "orders", subscriberOn(t, s, cfg), "booked", pub,
			func(msg *message.Message) ([]*message.Message, error) {
				if attempts++; attempts == 1 {
					return nil, errHandler
				}
				return book(h)(msg)
			})
	})
	<-failed
	defer close(again)
	h.exec(t, "create table leases as select locked_until from inbox_queue")
	h.reaches(t, 1, "the lease is renewed",
		"select count(*) from inbox_queue q join leases l on q.locked_until > l.locked_until")
	again <- true
	untilState(t, s, itemID("orders", 0), queue.Done)
	_, attempts := stateOf(t, s, itemID("orders", 0))
	assert.Zero(t, attempts)
}
