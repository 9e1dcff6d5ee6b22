package integration_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestNoConnectionForAHandler: messages whose handlers are not called because others use all connections of a small
// pool are not charged for that.
func TestNoConnectionForAHandler(t *testing.T) {
	t.Parallel()
	noLeaks(t)
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
			look := newPgxHandle(t, url)
			cfg := quickStore()
			cfg.MaxAttempts = 100
			storeAll(t, storeOn(t, look, cfg), items("orders", messages)...)

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
			eventually(t, func() bool {
				return look.count(t, `select count(*)::int from inbox_queue where state = 'processing'`) == 0
			}, "all are settled")
			assert.Equal(t, messages, look.count(t, `select count(*)::int from inbox_queue where state = 'done'`))
			assert.LessOrEqual(t, look.count(t, `select sum(attempts)::int from inbox_queue`), int(calls.Load())-messages,
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
