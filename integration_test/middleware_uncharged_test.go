package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// waits is a Backoff that records for which failures it was called.
type waits struct {
	mu  sync.Mutex
	all []int
}

func (w *waits) backoff() outbox.Backoff {
	return outbox.Backoff{Func: func(n int) time.Duration {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all = append(w.all, n)
		return 0
	}}
}

// wrongKind requests the transaction of the other driver.
func wrongKind(ctx context.Context, h handle) error {
	var err error
	if h.sql != nil {
		_, err = outbox.PgxTx(ctx)
	} else {
		_, err = outbox.SQLTx(ctx)
	}
	return err
}

// TestKeyHasTheContextOfItsMessage even when Key is called because OnBegin failed.
func TestKeyHasTheContextOfItsMessage(t *testing.T) {
	h := onPgx(t)
	type tenant struct{}
	mws := stack(t, h, middleware.StackConfig{
		Tx: middleware.TxConfig{OnBegin: func(context.Context, *message.Message) error { return errHandler }},
		Inbox: middleware.InboxConfig{Key: func(msg *message.Message) (string, error) {
			return msg.Context().Value(tenant{}).(string) + "/" + msg.UUID, nil
		}},
	})
	msg := newMessage("")
	msg.SetContext(context.WithValue(t.Context(), tenant{}, "acme"))
	_, err := chain(bookSilently(h), mws...)(msg)
	require.ErrorIs(t, err, errHandler)
	assert.Equal(t, []string{"acme/" + msg.UUID}, column[string](t, h, "select message_id from inbox where attempts = 1"))
}

// TestNothingIsReturnedOfAMessagePutAside: the Router would publish it with the ack. Without Tx nothing else drops it.
func TestNothingIsReturnedOfAMessagePutAside(t *testing.T) {
	h := onPgx(t)
	errorHandler, err := middleware.ErrorHandler(h.db, middleware.ErrorHandlerConfig{
		Service: "shop", Backoff: outbox.Backoff{Initial: -1},
	}, nil)
	require.NoError(t, err)
	for _, failure := range []error{outbox.Poison(errHandler), outbox.ErrAlreadyProcessed} {
		produced, err := chain(func(*message.Message) ([]*message.Message, error) {
			return message.Messages{newMessage("event")}, failure
		}, errorHandler)(newMessage(""))
		require.NoError(t, err, "acked")
		assert.Empty(t, produced, "%v", failure)
	}
	assert.Equal(t, []string{"dead_letters"}, topics(t, h))
}

// TestNoConnectionAtTheLastAttempt: a stored message does not die if its handler was not called because others had all
// connections.
func TestNoConnectionAtTheLastAttempt(t *testing.T) {
	parallel(t)
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 3 })
	cfg := quickStore()
	cfg.MaxAttempts = 1
	s := storeOn(t, h, cfg)
	var taken []*pgxpool.Conn
	first := true
	take := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			for first && len(taken) < 3 {
				conn, err := h.pool.Acquire(t.Context())
				if !assert.NoError(t, err) {
					break
				}
				taken = append(taken, conn)
			}
			if first { // later calls have no such limit
				ctx, cancel := context.WithTimeout(msg.Context(), 500*time.Millisecond)
				defer cancel()
				msg.SetContext(ctx)
			}
			first = false
			return next(msg)
		}
	}
	giveBack := func(next message.HandlerFunc) message.HandlerFunc {
		// released before ErrorHandler decides, so that it could write a dead letter
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			for _, conn := range taken {
				conn.Release()
			}
			taken = nil
			return produced, err
		}
	}
	mws := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)
	failed := make(chan error, 10)
	startRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("orders", "orders", subscriberOn(t, s, quickSubscriber()), func(msg *message.Message) error {
			return write(h, msg)
		}).AddMiddleware(take, func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				produced, err := next(msg)
				if err != nil {
					failed <- err
				}
				return produced, err
			}
		}, mws[0], giveBack, mws[1], mws[2], mws[3])
	})
	one := items("orders", 1)[0]
	storeAll(t, s, one)
	assert.ErrorContains(t, within(t, "the handler finds no connection", failed), "connections of the pool are in use")
	untilState(t, s, one.ID, queue.Done)
	assert.Zero(t, outboxed(t, h), "no dead letter")
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"))
}

// TestADetachedAckThatFailsIsRepeated without repeating the handler.
func TestADetachedAckThatFailsIsRepeated(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "create sequence tries")
	h.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin
		if new.state = 'done' and nextval('tries') <= 2 then raise exception 'not now'; end if;
		return new; end $$`)
	h.exec(t, "create trigger refuse before update on inbox_queue for each row execute function refuse()")
	s := storeOn(t, h, quickStore())
	calls := make(chan string, 100)
	dispatching(t, s, quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Handle: func(_ context.Context, msg *queue.Message) error {
			calls <- msg.MessageID
			return nil
		}},
	}))
	one := items("orders", 1)[0]
	storeAll(t, s, one)
	untilState(t, s, one.ID, queue.Done)
	assert.Len(t, calls, 1)
	assert.Equal(t, 3, value[int](t, h, "select last_value::int from tries"))
	_, attempts := stateOf(t, s, one.ID)
	assert.Zero(t, attempts)
}
