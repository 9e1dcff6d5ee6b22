package integration_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/middleware"
)

// Behind a watermill-sql subscriber an attempt that fails leaves nothing, whatever the subscriber does with its own
// transaction.
func TestBehindAWatermillSQLSubscriber(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		newEffects(t, h)
		url := h.url
		if h.name == "pgbouncer" {
			url += "&binary_parameters=yes" // lib/pq then prepares nothing, which another connection might not have
		}
		queue := newSQLHandle(t, "postgres", url).sql
		schemaAdapter, offsets := wsql.DefaultPostgreSQLSchema{}, wsql.DefaultPostgreSQLOffsetsAdapter{}
		pub, err := wsql.NewPublisher(queue, wsql.PublisherConfig{
			SchemaAdapter: schemaAdapter, AutoInitializeSchema: true,
		}, nil)
		require.NoError(t, err)
		subscribe := func(ackDeadline time.Duration) message.Subscriber {
			sub, err := wsql.NewSubscriber(queue, wsql.SubscriberConfig{
				SchemaAdapter: schemaAdapter, OffsetsAdapter: offsets, InitializeSchema: true, ConsumerGroup: "g",
				PollInterval: 10 * time.Millisecond, ResendInterval: time.Millisecond, RetryInterval: 10 * time.Millisecond,
				AckDeadline: &ackDeadline,
			}, watermill.NopLogger{})
			require.NoError(t, err)
			return sub
		}
		var calls atomic.Int32
		run := func(sub message.Subscriber, handler message.NoPublishHandlerFunc) *message.Router {
			calls.Store(0)
			return startRouter(t, func(r *message.Router) {
				r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
				r.AddConsumerHandler("h", "orders", sub, handler)
			})
		}
		processed := func(msg *message.Message) {
			t.Helper()
			eventually(t, func() bool {
				return h.count(t, "select count(*) from inbox where message_id = $1 and processed_at is not null", msg.UUID) == 1
			}, "the message is processed")
			assert.Equal(t, 1, effects(t, h, msg))
		}

		t.Run("nack", func(t *testing.T) {
			msg := newMessage("{}")
			require.NoError(t, pub.Publish("orders", msg))
			router := run(subscribe(patience), func(msg *message.Message) error {
				_, inTheirs := wsql.TxFromContext(msg.Context())
				assert.True(t, inTheirs)
				if err := write(h, msg); err != nil {
					return err
				}
				if calls.Add(1) < 3 {
					return errHandler
				}
				return nil
			})
			processed(msg)
			require.NoError(t, router.Close())
			assert.EqualValues(t, 3, calls.Load())
		})

		t.Run("ack deadline", func(t *testing.T) {
			msg := newMessage("{}")
			require.NoError(t, pub.Publish("orders", msg))
			router := run(subscribe(500*time.Millisecond), func(msg *message.Message) error {
				if err := write(h, msg); err != nil {
					return err
				}
				if calls.Add(1) == 1 {
					<-msg.Context().Done()
				}
				return nil
			})
			processed(msg)
			require.NoError(t, router.Close())
		})

		t.Run("close while the handler fails", func(t *testing.T) {
			msg := newMessage("{}")
			require.NoError(t, pub.Publish("orders", msg))
			sub := subscribe(patience)
			wrote, goOn := make(chan struct{}), make(chan struct{})
			router := run(sub, func(msg *message.Message) error {
				if err := write(h, msg); err != nil {
					return err
				}
				close(wrote)
				<-goOn
				return errHandler
			})
			<-wrote
			require.NoError(t, sub.Close())
			close(goOn)
			require.NoError(t, router.Close())
			assert.Zero(t, effects(t, h, msg))

			router = run(subscribe(patience), func(msg *message.Message) error { return write(h, msg) })
			processed(msg)
			require.NoError(t, router.Close())
		})

		t.Run("close while the handler succeeds", func(t *testing.T) {
			msg, next := newMessage("{}"), newMessage("{}")
			require.NoError(t, pub.Publish("orders", msg))
			sub := subscribe(patience)
			wrote, goOn := make(chan struct{}), make(chan struct{})
			router := run(sub, func(msg *message.Message) error {
				if err := write(h, msg); err != nil {
					return err
				}
				close(wrote)
				<-goOn
				return nil
			})
			<-wrote
			require.NoError(t, sub.Close())
			close(goOn)
			require.NoError(t, router.Close())
			processed(msg)

			// The subscriber did not see the ack and delivers it again, ahead of the next.
			require.NoError(t, pub.Publish("orders", next))
			router = run(subscribe(patience), func(msg *message.Message) error {
				calls.Add(1)
				return write(h, msg)
			})
			processed(next)
			require.NoError(t, router.Close())
			assert.EqualValues(t, 1, calls.Load())
			assert.Equal(t, 1, effects(t, h, msg))
		})
	})
}

// TestBehindAWatermillSQL4Subscriber, of which a transaction may be of pgx too: the handler does not join it, and an
// attempt that fails leaves nothing.
func TestBehindAWatermillSQL4Subscriber(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	newEffects(t, h)
	for name, beginner := range map[string]wsql4.Beginner{
		"database_sql": wsql4.BeginnerFromStdSQL(newSQLHandle(t, "pgx", h.url).sql), "pgx": wsql4.BeginnerFromPgx(h.pool),
	} {
		pub, err := wsql4.NewPublisher(beginner, wsql4.PublisherConfig{
			SchemaAdapter: wsql4.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true,
		}, nil)
		require.NoError(t, err)
		sub, err := wsql4.NewSubscriber(beginner, wsql4.SubscriberConfig{
			SchemaAdapter: wsql4.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql4.DefaultPostgreSQLOffsetsAdapter{},
			InitializeSchema: true, ConsumerGroup: "g", PollInterval: 10 * time.Millisecond, ResendInterval: time.Millisecond,
			RetryInterval: 10 * time.Millisecond,
		}, watermill.NopLogger{})
		require.NoError(t, err)
		msg := newMessage("{}")
		require.NoError(t, pub.Publish(name, msg))
		logger := watermill.NewCaptureLogger()
		var calls atomic.Int32
		router := startRouter(t, func(r *message.Router) {
			r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, logger)...)
			r.AddConsumerHandler("h", name, sub, func(msg *message.Message) error {
				_, inTheirs := wsql4.TxFromContext(msg.Context())
				assert.True(t, inTheirs, name)
				if err := write(h, msg); err != nil {
					return err
				}
				if calls.Add(1) < 3 {
					return errHandler
				}
				return nil
			})
		})
		eventually(t, func() bool {
			return h.count(t, "select count(*) from inbox where message_id = $1 and processed_at is not null", msg.UUID) == 1
		}, "the message is processed")
		require.NoError(t, router.Close())
		assert.Equal(t, 1, effects(t, h, msg), name)
		assert.EqualValues(t, 3, calls.Load(), name)
		told := 0
		for _, line := range logger.Captured()[watermill.DebugLogLevel] {
			if line.Msg == "subscriber has its own transaction: the handler does not join it" {
				told++
			}
		}
		assert.Equal(t, 1, told, name)
	}
}
