package integration_test

import (
	"context"
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

// TestNothingIsReturnedOfAMessagePutAside: the Router would publish it with the ack. Without Tx nobody else drops it.
func TestNothingIsReturnedOfAMessagePutAside(t *testing.T) {
	h := onPgx(t)
	outcomes, err := middleware.Outcomes(h.db, middleware.OutcomesConfig{
		Service: "shop", Backoff: outbox.Backoff{Initial: -1},
	}, nil)
	require.NoError(t, err)
	for _, failure := range []error{outbox.Poison(errHandler), outbox.ErrAlreadyProcessed} {
		produced, err := chain(func(*message.Message) ([]*message.Message, error) {
			return message.Messages{newMessage("event")}, failure
		}, outcomes)(newMessage(""))
		require.NoError(t, err, "acked")
		assert.Empty(t, produced, "%v", failure)
	}
	assert.Equal(t, []string{"dead_letters"}, topics(t, h))
}

// TestNoConnectionAtTheLastAttempt: a stored message whose handler was not called, as others had all connections, does
// not die of it.
func TestNoConnectionAtTheLastAttempt(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 3 })
	newEffects(t, h)
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
			if first { // the others have as long as they need
				ctx, cancel := context.WithTimeout(msg.Context(), 500*time.Millisecond)
				defer cancel()
				msg.SetContext(ctx)
			}
			first = false
			return next(msg)
		}
	}
	giveBack := func(next message.HandlerFunc) message.HandlerFunc {
		// before Outcomes decides, who could write a letter now
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
	select {
	case err := <-failed:
		assert.ErrorContains(t, err, "connections of the pool are in use")
	case <-time.After(patience):
		t.Fatal("the handler found a connection, or its message was put aside")
	}
	untilState(t, s, one.ID, queue.Done)
	assert.Zero(t, outboxed(t, h), "no letter")
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"))
}

// TestADetachedAckThatFailsIsRepeated, and not the handler.
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
