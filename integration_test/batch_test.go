package integration_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

const manyLedger = `insert into ledger (key, seq) select * from unnest($1::text[], $2::int[])`

// batchService is a member of the consumer group: a Router with a batch handler that writes a row for each message and
// publishes the size of each batch.
type batchService struct {
	router *message.Router
	ended  chan error
	calls  atomic.Int64
	most   atomic.Int64
	stop   sync.Once
}

func (w *inboundWorld) serveBatches(
	sub message.Subscriber, cfg middleware.BatchConfig, before func(context.Context, []*message.Message) error,
) *batchService {
	w.t.Helper()
	s := &batchService{ended: make(chan error, 1)}
	pub := newOutboxPublisher(w.t, w.h)
	cfg.Service = "inbound"
	handle, err := middleware.Batch(w.h.db, cfg, batchOf(w.h, pub,
		func(ctx context.Context, msgs []*message.Message) error {
			s.calls.Add(1)
			if n := int64(len(msgs)); n > s.most.Load() {
				s.most.Store(n)
			}
			if before != nil {
				return before(ctx, msgs)
			}
			return nil
		}), nil)
	require.NoError(w.t, err)
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: patience}, nil)
	require.NoError(w.t, err)
	s.router.AddConsumerHandler("ledger", w.topic, sub, handle)
	go func() { s.ended <- s.router.Run(context.Background()) }()
	<-s.router.Running()
	w.t.Cleanup(s.close)
	return s
}

type batchFunc = func(context.Context, []*message.Message) error

// batchOf returns a batch handler that writes a row for each message and publishes the size of the batch.
func batchOf(h handle, pub *outbox.Publisher, before batchFunc) batchFunc {
	return func(ctx context.Context, msgs []*message.Message) error {
		var keys []string
		var seqs []int
		for _, msg := range msgs {
			key, number, _ := strings.Cut(string(msg.Payload), " ")
			seq, err := strconv.Atoi(number)
			if err != nil {
				return outbox.Poison(err)
			}
			keys, seqs = append(keys, key), append(seqs, seq)
		}
		if err := h.execTx(ctx, manyLedger, keys, seqs); err != nil {
			return err
		}
		if before != nil {
			if err := before(ctx, msgs); err != nil {
				return err
			}
		}
		return pub.PublishContext(ctx, "projected", newMessage(fmt.Sprint(len(msgs))))
	}
}

func (s *batchService) close() {
	s.stop.Do(func() {
		_ = s.router.Close()
		<-s.ended
	})
}

func (w *inboundWorld) batchSubscriber(concurrency int) message.Subscriber {
	w.t.Helper()
	c := w.config()
	c.Concurrency = concurrency
	sub, err := c.subscriber(watermill.NopLogger{})
	require.NoError(w.t, err)
	return sub
}

// published is the sum of the batch sizes that the handler published.
func (w *inboundWorld) published() int {
	return w.h.count(w.t, `select coalesce(sum(convert_from(payload, 'UTF8')::int), 0) from outbox where topic = 'projected'`)
}

// TestBatchHandlesEachMessageOnce: by key with 500 messages in flight while processes come and go; and behind
// watermill-kafka, where a batch has one message of each partition.
func TestBatchHandlesEachMessageOnce(t *testing.T) {
	t.Parallel()
	t.Run("by key", func(t *testing.T) {
		w := newInboundWorld(t, 4)
		w.send(4000, 700)
		a := w.serveBatches(w.batchSubscriber(500), middleware.BatchConfig{}, nil)
		w.await(1500)
		b := w.serveBatches(w.batchSubscriber(500), middleware.BatchConfig{}, nil)
		w.send(4000, 700)
		w.await(4500)
		a.close()
		w.await(8000)
		w.verify()
		assert.Equal(t, 8000, w.published(), "each call's message is in its transaction")
		t.Logf("%d and %d calls, at most %d and %d messages", a.calls.Load(), b.calls.Load(), a.most.Load(), b.most.Load())
		assert.Less(t, a.calls.Load()+b.calls.Load(), int64(1000))
	})
	t.Run("watermill-kafka", func(t *testing.T) {
		extended(t)
		w := newInboundWorld(t, 4)
		w.send(1000, 100)
		sub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
			Brokers: w.server.Brokers(), ConsumerGroup: w.group, Unmarshaler: wmkafka.DefaultMarshaler{},
			OverwriteSaramaConfig: func() *sarama.Config {
				c := wmkafka.DefaultSaramaSubscriberConfig()
				c.Consumer.Offsets.Initial = sarama.OffsetOldest
				return c
			}(),
		}, watermill.NopLogger{})
		require.NoError(t, err)
		s := w.serveBatches(sub, middleware.BatchConfig{}, nil)
		w.await(1000)
		w.verify()
		t.Logf("%d calls, at most %d messages", s.calls.Load(), s.most.Load())
		assert.LessOrEqual(t, s.most.Load(), int64(4))
	})
}

// TestBatchWithBadMessages: some messages are poison, one panics, one ends the goroutine and one fails, each repeatedly
// or only in a batch. The others are committed, each once, and each poison message gets a dead letter.
func TestBatchWithBadMessages(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 2)
	w.send(2000, 1000)
	var bad []*sarama.ProducerMessage
	for i := range 5 {
		msg := w.record(numberedMessage{"bad-" + itoa(i), 1})
		msg.Value = sarama.StringEncoder("poison x")
		bad = append(bad, msg)
	}
	bad = append(bad, w.record(numberedMessage{"panics", 1}), w.record(numberedMessage{"fails", 1}),
		w.record(numberedMessage{"later", 1}), w.record(numberedMessage{"exits", 1}))
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(w.server.Brokers(), cfg)
	require.NoError(t, err)
	defer producer.Close()
	require.NoError(t, producer.SendMessages(bad))
	w.send(2000, 1000)
	w.settled += 4

	var panics, fails, postponed, exits atomic.Int64
	s := w.serveBatches(w.batchSubscriber(1000), middleware.BatchConfig{},
		func(_ context.Context, msgs []*message.Message) error {
			for _, msg := range msgs {
				switch key, _, _ := strings.Cut(string(msg.Payload), " "); {
				case key == "panics" && panics.Add(1) < 12:
					panic("now")
				case key == "fails" && fails.Add(1) < 12:
					return errHandler
				case key == "later" && len(msgs) == 1 && postponed.Add(1) < 3:
					return outbox.RetryAfter(errHandler, 50*time.Millisecond)
				case key == "exits" && len(msgs) > 1 && exits.Add(1) == 1:
					runtime.Goexit()
				}
			}
			return nil
		})
	w.await(4004)
	w.verify()
	assert.Equal(t, 4004, w.published())
	deadLetters := func() int { return w.h.count(t, `select count(*) from outbox where topic = 'dead_letters'`) }
	require.Eventually(t, func() bool { return deadLetters() == 5 }, patience, 10*time.Millisecond)
	assert.Equal(t, 5, w.h.count(t, `select count(*) from inbox where dead_at is not null`))
	t.Logf("%d calls, at most %d messages", s.calls.Load(), s.most.Load())
	assert.Less(t, s.calls.Load(), 600+s.most.Load(), "all messages of the batch that ends its goroutine may go alone")
}

// TestBatchSkipsDuplicates: copies within a batch, and copies of messages handled before.
func TestBatchSkipsDuplicates(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		obs := &seen{}
		var calls atomic.Int64
		handle, err := middleware.Batch(h.seenBy(t, obs).db, middleware.BatchConfig{
			Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"}, MaxWait: 2 * time.Second,
		}, func(ctx context.Context, msgs []*message.Message) error {
			calls.Add(1)
			for _, msg := range msgs {
				if err := write(h, msg); err != nil { // through the context of the message
					return err
				}
			}
			return nil
		}, nil)
		require.NoError(t, err)
		msgs := newMessages(20)
		for range 2 {
			var wg sync.WaitGroup
			for _, msg := range append(msgs, msgs...) {
				wg.Go(func() { assert.NoError(t, handle(msg.Copy())) })
			}
			wg.Wait()
		}
		for _, msg := range msgs {
			assert.Equal(t, 1, effects(t, h, msg))
		}
		assert.EqualValues(t, 1, calls.Load())
		count := map[observe.Outcome]int{}
		inCalls := 0
		for _, end := range obs.ends() {
			count[end.Outcome]++
			if end.Duration > 0 { // set once for each call
				inCalls += end.Batch
			}
		}
		assert.Equal(t, map[observe.Outcome]int{observe.Processed: 20, observe.Duplicate: 60}, count)
		assert.Equal(t, 80, inCalls, "each call is observed once, with its size")
	})
}

// TestBatchRolledBack: a message whose handler rolls back is acked, and the rest of its batch is committed. Observers
// see it as they do for a single message. A handler's own error that wraps ErrRolledBack is a failure.
func TestBatchRolledBack(t *testing.T) {
	h := onPgx(t)
	obs := &seen{}
	handle, err := middleware.Batch(h.seenBy(t, obs).db, middleware.BatchConfig{
		Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"}, MaxMessages: 5, MaxWait: 300 * time.Millisecond,
		ErrorHandler: middleware.ErrorHandlerConfig{Backoff: outbox.Backoff{Initial: -1}},
	}, func(_ context.Context, msgs []*message.Message) error {
		for _, msg := range msgs {
			if err := write(h, msg); err != nil {
				return err
			}
			switch string(msg.Payload) {
			case "3":
				if err := outbox.SetRollbackOnly(msg.Context()); err != nil {
					return err
				}
			case "fails":
				return fmt.Errorf("another transaction: %w", outbox.ErrRolledBack)
			}
		}
		return nil
	}, nil)
	require.NoError(t, err)
	msgs := newMessages(5)
	var wg sync.WaitGroup
	for _, msg := range msgs {
		wg.Go(func() { assert.NoError(t, handle(msg)) })
	}
	wg.Wait()
	count := map[observe.Outcome]int{}
	for _, end := range obs.ends() {
		count[end.Outcome]++
	}
	assert.Equal(t, map[observe.Outcome]int{observe.Processed: 4, observe.RolledBack: 1}, count)
	assert.Equal(t, 4, h.count(t, "select count(*) from inbox"))
	assert.Equal(t, 4, h.count(t, "select count(*) from effects"))
	assert.Zero(t, effects(t, h, msgs[3]))
	require.ErrorIs(t, handle(message.NewMessage(watermill.NewUUID(), []byte("fails"))), outbox.ErrRolledBack)
}

// TestBatchGivesUpWhatWaits: a message that is in no batch yet when its subscription ends is nacked, and no attempt is
// counted.
func TestBatchGivesUpWhatWaits(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{MaxAttempts: 1})
	_, err := store.Enqueue(t.Context(), items("jobs", 2)...)
	require.NoError(t, err)
	sub := subscriberOn(t, store, queue.SubscriberConfig{Concurrency: 2, CloseTimeout: patience})
	deliveries, err := sub.Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	inside, goOn := make(chan int, 10), make(chan struct{})
	handle, err := middleware.Batch(h.db, middleware.BatchConfig{
		Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"}, MaxMessages: 1,
	}, func(_ context.Context, msgs []*message.Message) error {
		inside <- len(msgs)
		<-goOn
		return nil
	}, nil)
	require.NoError(t, err)
	results := make(chan error, 2)
	for range 2 {
		msg := <-deliveries
		go func() {
			err := handle(msg)
			if err == nil {
				msg.Ack()
			} else {
				msg.Nack()
			}
			results <- err
		}()
	}
	require.Equal(t, 1, <-inside)
	closed := make(chan error)
	go func() { closed <- sub.Close() }()
	require.ErrorIs(t, <-results, context.Canceled)
	close(goOn)
	require.NoError(t, <-results)
	require.NoError(t, <-closed)
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue where state = 'done'"))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue where state = 'processing' and attempts = 0"))
}

// TestBatchOutlivesItsFirstMessage: the deadline of a single message does not limit a batch.
func TestBatchOutlivesItsFirstMessage(t *testing.T) {
	h := onPgx(t)
	within := make(chan time.Duration, 1)
	handle, err := middleware.Batch(h.db, middleware.BatchConfig{
		Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"}, Tx: middleware.TxConfig{Timeout: 2 * time.Hour},
	}, func(ctx context.Context, _ []*message.Message) error {
		deadline, _ := ctx.Deadline()
		within <- time.Until(deadline)
		return nil
	}, nil)
	require.NoError(t, err)
	msg := newMessage("1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	msg.SetContext(ctx)
	require.NoError(t, handle(msg))
	assert.Greater(t, <-within, time.Hour)
}

// TestBatchThatFailsAsAWhole: halving a batch ends, and does not begin after a timeout.
func TestBatchThatFailsAsAWhole(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		h := newPgxHandle(t, newMigratedDatabase(t))
		var calls, alone atomic.Int64
		handle, err := middleware.Batch(h.db, middleware.BatchConfig{
			Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"}, MaxMessages: 200, MaxWait: patience,
			ErrorHandler: middleware.ErrorHandlerConfig{Backoff: outbox.Backoff{Initial: -1}},
			Tx:           middleware.TxConfig{Timeout: 2 * time.Second},
		}, func(ctx context.Context, msgs []*message.Message) error {
			calls.Add(1)
			switch {
			case !hangs:
				return errHandler
			case len(msgs) > 1:
				<-ctx.Done()
				return ctx.Err()
			}
			alone.Add(1)
			return nil
		}, nil)
		require.NoError(t, err)
		begun := time.Now()
		var failed atomic.Int64
		var wg sync.WaitGroup
		for _, msg := range newMessages(200) {
			wg.Go(func() {
				if handle(msg) != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		t.Logf("hangs %v: %d calls in %s", hangs, calls.Load(), time.Since(begun))
		assert.LessOrEqual(t, calls.Load(), int64(200+25+8))
		assert.Equal(t, map[bool]int64{false: 200, true: 0}[hangs], failed.Load())
		assert.Equal(t, map[bool]int{false: 0, true: 200}[hangs],
			h.count(t, "select count(*) from inbox where processed_at is not null"))
		assert.Equal(t, map[bool]int{false: 200, true: 0}[hangs], h.count(t, "select count(*) from inbox where attempts = 1"))
	}
}

// debugPanics is a logger that panics in Debug.
type debugPanics struct{ watermill.LoggerAdapter }

func (debugPanics) Debug(string, watermill.LogFields)                  { panic("logger") }
func (l debugPanics) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// TestBatchThatPanicsOutsideItsFunction: a panic of a tracer or logger does not end the process. The messages of the
// batch go alone, and the next ones are handled together again.
func TestBatchThatPanicsOutsideItsFunction(t *testing.T) {
	t.Parallel()
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	tracer, fails := false, false // used by one goroutine, and between batches
	gate.onRun(sqltext.ClaimInboxes, func() {
		if tracer {
			panic("tracer")
		}
	})
	var calls atomic.Int64
	log := watermill.NewCaptureLogger()
	handle, err := middleware.Batch(h.db, middleware.BatchConfig{
		Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"}, MaxMessages: 5, MaxWait: patience,
	}, func(_ context.Context, msgs []*message.Message) error {
		calls.Add(1)
		if fails && len(msgs) > 1 {
			return errHandler // which is logged
		}
		return nil
	}, debugPanics{log})
	require.NoError(t, err)
	for n, when := range []string{"the tracer panics", "the logger panics", "nothing panics"} {
		tracer, fails = n == 0, n == 1
		var wg sync.WaitGroup
		for _, msg := range newMessages(5) {
			wg.Go(func() { assert.NoError(t, handle(msg), when) })
		}
		wg.Wait()
		assert.Equal(t, 5*(n+1), h.count(t, "select count(*) from inbox where processed_at is not null"), when)
		assert.EqualValues(t, []int{5, 5 + 1 + 5, 5 + 1 + 5 + 1}[n], calls.Load(), when)
		assert.Len(t, log.Captured()[watermill.ErrorLogLevel], min(n+1, 2), when)
	}
}

// TestBatchOfTheQueue: the acks of a queue.Subscriber's messages are in the transaction of the batch.
func TestBatchOfTheQueue(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{Backoff: outbox.Backoff{Initial: 10 * time.Millisecond,
		Max: 10 * time.Millisecond}})
	var items []queue.Item
	for i := range 300 {
		items = append(items, queue.Item{ID: queue.ID{Source: "s", MessageID: itoa(i)}, Topic: "jobs",
			Payload: []byte(itoa(i))})
	}
	_, err := store.Enqueue(t.Context(), items...)
	require.NoError(t, err)
	sub, err := queue.NewSubscriber(store, queue.SubscriberConfig{Service: "shop", Concurrency: 100}, nil)
	require.NoError(t, err)
	var calls atomic.Int64
	handle, err := middleware.Batch(h.db, middleware.BatchConfig{Service: "shop"},
		func(ctx context.Context, msgs []*message.Message) error {
			calls.Add(1)
			for _, msg := range msgs {
				if err := write(h, msg); err != nil {
					return err
				}
				switch string(msg.Payload) {
				case "7":
					return outbox.Poison(errHandler)
				case "8":
					if m, _ := queue.MessageFromContext(msg.Context()); m.Attempts < 2 {
						return errHandler
					}
				}
			}
			return nil
		}, nil)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	require.NoError(t, err)
	router.AddConsumerHandler("jobs", "jobs", sub, handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	require.Eventually(t, func() bool {
		return h.count(t, "select count(*) from inbox_queue where state in ('done', 'dead')") == 300
	}, patience, 10*time.Millisecond)
	require.NoError(t, errors.Join(router.Close(), <-ended))
	assert.Equal(t, 299, h.count(t, "select count(*) from inbox_queue where state = 'done'"))
	assert.Equal(t, 299, h.count(t, "select count(distinct message_id) from effects"))
	assert.Equal(t, 299, h.count(t, "select count(*) from effects"))
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
	t.Logf("%d calls", calls.Load())
}

// startBatches is startInbound with middleware.Batch.
func (s *inboundService) startBatches(
	h handle, c inboundConfig, pub *outbox.Publisher, logger watermill.LoggerAdapter,
) (err error) {
	handle, err := middleware.Batch(h.db, middleware.BatchConfig{Service: "inbound"}, batchOf(h, pub, nil), logger)
	if err != nil {
		return err
	}
	if s.sub, err = c.subscriber(logger); err != nil {
		return err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: patience}, logger); err != nil {
		return err
	}
	s.router.AddConsumerHandler("ledger", c.Topic, s.sub, handle)
	go func() { s.ended <- s.router.Run(context.Background()) }()
	<-s.router.Running()
	return nil
}

func newMessages(n int) (msgs []*message.Message) {
	for i := range n {
		msgs = append(msgs, newMessage(itoa(i)))
	}
	return msgs
}

// TestBatchRetryAfter: a message that is redelivered before its retry time joins no batch until then. With
// forwarder.Subscriber, which does not redeliver it early, it is handled at that time.
func TestBatchRetryAfter(t *testing.T) {
	h := onPgx(t)
	const wait = time.Second
	var calls atomic.Int64
	var first atomic.Pointer[time.Time]
	handle, err := middleware.Batch(h.db, middleware.BatchConfig{
		Service: "shop", Inbox: middleware.InboxConfig{Consumer: "test"},
		ErrorHandler: middleware.ErrorHandlerConfig{
			Backoff: outbox.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond},
		},
	}, func(context.Context, []*message.Message) error {
		now := time.Now()
		if calls.Add(1); first.CompareAndSwap(nil, &now) {
			return outbox.RetryAfter(errHandler, wait)
		}
		return nil
	}, newLogCapture(t))
	require.NoError(t, err)

	t.Run("redelivered", func(t *testing.T) {
		msg := newMessage("x")
		for {
			if handle(msg.Copy()) == nil {
				break
			}
		}
		assert.GreaterOrEqual(t, time.Since(*first.Load()), wait)
		assert.EqualValues(t, 2, calls.Load())
	})
	t.Run("forwarder.Subscriber", func(t *testing.T) {
		first.Store(nil)
		calls.Store(0)
		require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			return newOutboxPublisher(t, h).PublishContext(ctx, "orders", newMessage("x"))
		}))
		sub, err := forwarder.NewSubscriber(h.db, forwarder.SubscriberConfig{}, newLogCapture(t))
		require.NoError(t, err)
		startRouter(t, func(r *message.Router) { r.AddConsumerHandler("test", "orders", sub, handle) })
		h.reaches(t, 1, "the message is handled", "select count(*) from outbox where published_at is not null")
		assert.GreaterOrEqual(t, time.Since(*first.Load()), wait)
		assert.EqualValues(t, 2, calls.Load())
	})
}
