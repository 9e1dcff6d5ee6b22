package integration_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
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
