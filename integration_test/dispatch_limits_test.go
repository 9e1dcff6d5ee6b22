package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// claimsSeen counts the statements that claim.
func claimsSeen(seen []statementSeen) (n int) {
	for _, s := range seen {
		if strings.Contains(s.SQL, sqltext.Tables{}.Render("UPDATE {queue} q SET owner = $1::uuid, locked_until")) {
			n++
		}
	}
	return n
}

// TestManyLimitsCostOneClaim: handlers with a Concurrency limit share claims, so a message costs as many statements
// with many handlers as with one.
func TestManyLimitsCostOneClaim(t *testing.T) {
	parallel(t)
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	s := storeOn(t, h, quickStore())
	const topics, messages = 300, 20
	var handled atomic.Int64
	handlers := map[string]queue.Handler{}
	for i := range topics {
		handlers[fmt.Sprint("topic", i)] = queue.Handler{Concurrency: 1, Handle: func(context.Context, *queue.Message) error {
			handled.Add(1)
			return nil
		}}
	}
	d := dispatching(t, s, queue.DispatcherConfig{Handlers: handlers, PollInterval: time.Hour, CloseTimeout: patience})
	drain(t, d)
	seen.take()
	for i := range messages {
		storeAll(t, s, items(fmt.Sprint("topic", i*10), 1)...)
		eventually(t, func() bool { return handled.Load() == int64(i+1) }, "it is handled")
	}
	drain(t, d)
	n := claimsSeen(seen.take())
	assert.LessOrEqual(t, n, 6*messages, "claims for %d messages", messages)
}

// TestABacklogOfOneTopicStopsNoOther: a backlog of one topic delays no other, and is itself handled as fast as its
// limit allows: each message costs a claim, and none waits for a poll. The limits hold at every moment.
func TestABacklogOfOneTopicStopsNoOther(t *testing.T) {
	parallel(t)
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	s := storeOn(t, h, quickStore())
	const backlog, others = 150, 100
	storeAll(t, s, items("backlog", backlog)...)
	var done [2]atomic.Int64
	all := limit{t: t, what: "handlers", most: 8}
	handlers := map[string]queue.Handler{}
	handle := func(topic string, most int) {
		of, i := limit{t: t, what: topic, most: int64(most)}, 1
		if topic == "backlog" {
			i = 0
		}
		handlers[topic] = queue.Handler{
			Concurrency: most, Detached: true, Handle: func(context.Context, *queue.Message) error {
				all.enter()
				defer all.leave()
				of.enter()
				defer of.leave()
				done[i].Add(1)
				return nil
			},
		}
	}
	handle("backlog", 1)
	for i := range others {
		handle(fmt.Sprint("topic", i), 2)
	}
	d := dispatching(t, s, queue.DispatcherConfig{
		Handlers: handlers, Concurrency: 8, PollInterval: time.Hour, CloseTimeout: patience,
	})
	for i := range others {
		storeAll(t, s, items(fmt.Sprint("topic", i), 1)...)
	}
	eventually(t, func() bool { return done[1].Load() == others }, "the others are handled")
	eventually(t, func() bool { return done[0].Load() == backlog }, "the backlog is handled")
	drain(t, d)
	assert.LessOrEqual(t, claimsSeen(seen.take()), 4*(backlog+others), "claims")
	require.Zero(t, h.count(t, "select count(*) from inbox_queue where state <> 'done'"))
}

// TestNoConnectionForAHandler: messages whose handlers are not called because others use all connections of a small
// pool are not charged for that.
func TestNoConnectionForAHandler(t *testing.T) {
	parallel(t)
	const conns, messages, timeout = 3, 16, 300 * time.Millisecond
	for name, start := range map[string]func(t *testing.T, h handle, s *queue.Store, log logCapture, handle func()){
		"dispatcher": func(t *testing.T, h handle, s *queue.Store, log logCapture, handle func()) {
			d, err := queue.NewDispatcher(s, quickDispatcher(map[string]queue.Handler{"orders": {
				Timeout: timeout,
				Handle:  func(context.Context, *queue.Message) error { handle(); return nil },
			}}), log)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- d.Run(context.Background()) }()
			t.Cleanup(func() {
				assert.NoError(t, d.Close())
				assert.NoError(t, <-ended)
			})
		},
		"subscriber": func(t *testing.T, h handle, s *queue.Store, log logCapture, handle func()) {
			startRouter(t, func(r *message.Router) {
				stack := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
					Tx: middleware.TxConfig{Timeout: timeout},
				}, nil)
				told := func(next message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						produced, err := next(msg)
						if err != nil {
							log.Error("handler failed", err, nil)
						}
						return produced, err
					}
				}
				r.AddConsumerHandler("orders", "orders", subscriberOn(t, s, quickSubscriber()), func(*message.Message) error {
					handle()
					return nil
				}).AddMiddleware(append([]message.HandlerMiddleware{told}, stack...)...)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := newMigratedDatabase(t)
			h := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.MaxConns = conns })
			other := newPgxHandle(t, url)
			cfg := quickStore()
			cfg.MaxAttempts = 100
			storeAll(t, storeOn(t, other, cfg), items("orders", messages)...)

			var calls atomic.Int64
			goOn := make(chan struct{})
			release := sync.OnceFunc(func() { close(goOn) })
			log := newLogCapture(t)
			start(t, h, storeOn(t, h, cfg), log, func() {
				if calls.Add(1) <= conns {
					<-goOn
				}
			})
			t.Cleanup(release)
			// on a slow machine some are not claimed before the pool has no connection left to claim more
			eventually(t, func() bool { return log.count("connections of the pool are in use") > 0 },
				"they find no connection")
			release()
			other.reaches(t, 0, "all are settled", `select count(*)::int from inbox_queue where state = 'processing'`)
			assert.Equal(t, messages, other.count(t, `select count(*)::int from inbox_queue where state = 'done'`))
			assert.LessOrEqual(t, other.count(t, `select sum(attempts)::int from inbox_queue`), int(calls.Load())-messages,
				"a message was charged although its handler was not called")
		})
	}
}

// TestOnBeginThatSpoilsItsTransaction is charged like a failing handler although the handler is not called; otherwise
// its message would return forever.
func TestOnBeginThatSpoilsItsTransaction(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxAttempts = 2
	s := storeOn(t, h, cfg)
	one := items("orders", 1)[0]
	storeAll(t, s, one)
	startRouter(t, func(r *message.Router) {
		stack := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{Tx: middleware.TxConfig{
			OnBegin: func(ctx context.Context, _ *message.Message) error {
				return h.execFirst(ctx, "set local search_path to pg_catalog")
			},
		}}, nil)
		r.AddConsumerHandler("orders", "orders", subscriberOn(t, s, quickSubscriber()), func(*message.Message) error {
			t.Error("the handler is called")
			return nil
		}).AddMiddleware(stack...)
	})
	untilState(t, s, one.ID, queue.Dead)
}

// TestAPublishWakesNoDispatcher: messages written to the outbox wake no dispatcher, in this process or in others.
func TestAPublishWakesNoDispatcher(t *testing.T) {
	parallel(t)
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
	handles := func(by handle, id string) {
		before := handled.Load()
		storeAll(t, storeOn(t, by, quickStore()), item("test", id))
		eventually(t, func() bool { return handled.Load() > before }, "it is handled")
	}
	handles(there, "it listens")
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
		handles(by, "after the publishes of "+fmt.Sprintf("%p", by.db))
		drain(t, d)
		assert.LessOrEqual(t, claimsSeen(seen.take()), 8, "claims for one message and 20 publishes")
	}
}

// TestAMessageWakesTheSubscriptionOfItsTopic, and not those of 49 other topics.
func TestAMessageWakesTheSubscriptionOfItsTopic(t *testing.T) {
	parallel(t)
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
		h.reaches(t, 0, "all are done", "select count(*) from inbox_queue where state <> 'done'")
		seen.take()
		for i := range messages {
			before := handled.Load()
			storeAll(t, there, items(fmt.Sprint("topic", i), n+3)[n+2])
			eventually(t, func() bool { return handled.Load() > before }, "it is handled")
		}
		assert.LessOrEqual(t, claimsSeen(seen.take()), 6*messages, "claims for %d messages", messages)
	}
}

// TestABacklogStarvesNoTopic: a topic without a backlog is handled soon, whatever precedes it in the table: other
// topics with 30,000 messages that keep handlers busy, new or due again, of few topics or many, with limits or without.
func TestABacklogStarvesNoTopic(t *testing.T) {
	parallel(t)
	const backlog, quiet, most = 30_000, 10, 1_000
	for name, tc := range map[string]struct {
		topics, limit, quietLimit int // limit 0 = none
		due                       bool
	}{
		"two topics with limits":           {topics: 2, limit: 6},
		"two topics with limits, due":      {topics: 2, limit: 6, due: true},
		"20 topics of one at a time, due":  {topics: 20, limit: 1, due: true},
		"500 topics of one at a time":      {topics: 500, limit: 1},
		"500 topics of one at a time, due": {topics: 500, limit: 1, due: true},
		"only the quiet one limited":       {topics: 2, quietLimit: 2},
		"only the quiet one limited, due":  {topics: 2, quietLimit: 2, due: true},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.due != (tc.topics == 20) || tc.topics == 500 {
				extended(t)
			}
			h := newPgxHandle(t, newMigratedDatabase(t))
			due := "clock_timestamp()"
			if tc.due {
				due = "clock_timestamp() - interval '1 hour'"
			}
			insert := `INSERT INTO inbox_queue (source, message_id, topic, state, due_at, attempts)
				SELECT $1::text, i::text, $1 || i % $2::int, 'processing', ` + due + `, 1 FROM generate_series(1, $3::int) i`
			if !tc.due {
				insert = `INSERT INTO inbox_queue (source, message_id, topic, state)
					SELECT $1::text, i::text, $1 || i % $2::int, 'processing' FROM generate_series(1, $3::int) i`
			}
			h.exec(t, insert, "busy", tc.topics, backlog)
			h.exec(t, insert, "quiet", 1, quiet)
			h.exec(t, "ANALYZE inbox_queue")
			var busyHandled, quietHandled atomic.Int64
			over := make(chan struct{}, 2)
			handler := func(n *atomic.Int64, limit int, last int64) queue.Handler {
				return queue.Handler{Detached: true, Concurrency: limit, Handle: func(context.Context, *queue.Message) error {
					if n.Add(1) == last {
						over <- struct{}{}
					}
					return nil
				}}
			}
			handlers := map[string]queue.Handler{"quiet0": handler(&quietHandled, tc.quietLimit, quiet)}
			for i := range tc.topics {
				handlers[fmt.Sprint("busy", i)] = handler(&busyHandled, tc.limit, most)
			}
			cfg := quickDispatcher(handlers)
			cfg.Concurrency = 12
			dispatching(t, storeOn(t, h, quickStore()), cfg)
			within(t, "the handlers are called", over)
			assert.EqualValues(t, quiet, quietHandled.Load(), "messages of the quiet topic, next to %d of the others",
				busyHandled.Load())
			t.Logf("%d of the quiet topic and %d of the others were handled", quietHandled.Load(), busyHandled.Load())
		})
	}
}

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
