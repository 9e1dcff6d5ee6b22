package integration_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// Behind a watermill-sql subscriber on the same database/sql pool a failed attempt leaves nothing, whatever the
// subscriber does with its own transaction.
func TestBehindAWatermillSQLSubscriber(t *testing.T) {
	parallel(t)
	h := newSQLHandle(t, "postgres", newMigratedDatabase(t))
	schemaAdapter, offsets := wsql.DefaultPostgreSQLSchema{}, wsql.DefaultPostgreSQLOffsetsAdapter{}
	pub, err := wsql.NewPublisher(h.sql, wsql.PublisherConfig{
		SchemaAdapter: schemaAdapter, AutoInitializeSchema: true,
	}, nil)
	require.NoError(t, err)
	subscribe := func(ackDeadline time.Duration) message.Subscriber {
		sub, err := wsql.NewSubscriber(h.sql, wsql.SubscriberConfig{
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
		h.reaches(t, 1, "the message is processed",
			"select count(*) from inbox where message_id = $1 and processed_at is not null", msg.UUID)
		assert.Equal(t, 1, effects(t, h, msg))
	}

	send := func() *message.Message {
		msg := newMessage("{}")
		require.NoError(t, pub.Publish("orders", msg))
		return msg
	}

	t.Run("close while the handler works", func(t *testing.T) {
		msg, sub := send(), subscribe(patience)
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

		// The subscriber missed the ack and redelivers the message before the next.
		next := send()
		router = run(subscribe(patience), func(msg *message.Message) error {
			calls.Add(1)
			return write(h, msg)
		})
		processed(next)
		require.NoError(t, router.Close())
		assert.EqualValues(t, 1, calls.Load())
		assert.Equal(t, 1, effects(t, h, msg))
	})

	t.Run("nack", func(t *testing.T) {
		msg := send()
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
		msg := send()
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
}

// TestBehindAWatermillSQL4Subscriber, whose transaction may also be a pgx transaction: the handler does not join it,
// and a failed attempt leaves nothing.
func TestBehindAWatermillSQL4Subscriber(t *testing.T) {
	h := onPgx(t)
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
		h.reaches(t, 1, "the message is processed",
			"select count(*) from inbox where message_id = $1 and processed_at is not null", msg.UUID)
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

// inProcess returns a Pub/Sub whose messages keep their context. If it blocks, Publish returns when they are acked. It
// keeps messages for later subscribers, because a Router starts its handlers in any order.
func inProcess(t testing.TB, blocks bool) *gochannel.GoChannel {
	t.Helper()
	cfg := gochannel.Config{PreserveContext: true, BlockPublishUntilSubscriberAck: blocks, Persistent: true}
	pubsub := gochannel.NewGoChannel(cfg, watermill.NopLogger{})
	t.Cleanup(func() { assert.NoError(t, pubsub.Close()) })
	return pubsub
}

// The mark of a delivery stays with the handler that it was made to, whatever the handler publishes in-process, and
// however much the two handlers have in common.
func TestDeliveryDoesNotTravel(t *testing.T) {
	h := onPgx(t)
	pubsub, broker := inProcess(t, true), &published{}
	pub := newOutboxPublisher(t, h)
	stack := stackFor(t, pub, middleware.StackConfig{}, nil)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stack...)
		r.AddHandler("orders", "orders", pubsub, "bookings", broker, func(msg *message.Message) ([]*message.Message, error) {
			_, ok := core.DeliveryFrom(msg.Context())
			assert.False(t, ok, "the delivery of another handler")
			return book(h)(msg)
		})
	})
	startRouter(t, func(r *message.Router) {
		r.AddHandler("orders", "orders", startSubscriber(t, h, subscribing(quickConfig())), "orders", pubsub,
			func(msg *message.Message) ([]*message.Message, error) {
				d, ok := core.DeliveryFrom(msg.Context())
				assert.True(t, ok)
				assert.Equal(t, "orders", d.Topic)
				return message.Messages{msg}, nil
			})
	})
	h.publish(t, "orders", "", "order")
	h.reaches(t, 1, "the order is passed on",
		"select count(*) from outbox where topic = 'orders' and published_at is not null")
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is not null"))
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'bookings'"))
	assert.Zero(t, broker.count(), "the Router published it")
}
