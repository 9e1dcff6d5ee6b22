package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/queue"
)

func newQueuePublisher(t testing.TB, s *queue.Store, without outbox.WithoutTx) *queue.Publisher {
	t.Helper()
	pub, err := queue.NewPublisher(s, queue.PublisherConfig{WithoutTx: without})
	require.NoError(t, err)
	return pub
}

// TestPublishIntoTheQueue: messages are stored in the transaction of their context, or refused without one.
func TestPublishIntoTheQueue(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		s := storeOn(t, h, quickStore())
		pub := newQueuePublisher(t, s, outbox.RequireTx)
		stored := func() int { return h.count(t, "select count(*) from inbox_queue") }

		require.ErrorIs(t, pub.Publish("jobs", newMessage("bare")), outbox.ErrNoTx)
		require.ErrorIs(t, pub.PublishContext(t.Context(), "jobs", newMessage("bare")), outbox.ErrNoTx)
		require.NoError(t, pub.Publish("jobs"), "no message")
		assert.Zero(t, stored())

		for _, fails := range []bool{true, false} {
			err := outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
				msg, later := message.NewMessage("one", []byte("1")), message.NewMessage("later", nil)
				msg.SetContext(ctx)
				outbox.SetKey(msg, "K")
				msg.Metadata.Set("kind", "order")
				outbox.SetDelay(later, time.Hour)
				assert.ErrorIs(t, pub.Publish("jobs", msg, newMessage("bare")), core.ErrMixedTx)
				require.NoError(t, pub.Publish("jobs", msg))
				require.NoError(t, pub.PublishContext(ctx, "jobs", later))
				if fails {
					return errHandler
				}
				return nil
			})
			assert.Equal(t, fails, err != nil)
		}
		assert.Equal(t, 2, stored(), "the rolled-back message is gone")
		m := got(t, s, queue.ID{Source: "jobs", MessageID: "one"})
		assert.Equal(t, "K", m.Key)
		assert.Equal(t, "order", m.Metadata.Get("kind"))
		due := got(t, s, queue.ID{Source: "jobs", MessageID: "later"}).DueAt
		assert.WithinDuration(t, time.Now().Add(time.Hour), due, time.Minute)

		other := newPgxHandle(t, newMigratedDatabase(t))
		require.NoError(t, outbox.InTx(t.Context(), other.db, func(ctx context.Context) error {
			require.ErrorIs(t, pub.PublishContext(ctx, "jobs", newMessage("x")), outbox.ErrOtherDB)
			return nil
		}))
		own := newQueuePublisher(t, s, outbox.OwnTx)
		broken := newMessage("broken")
		broken.Metadata.Set("_watermill_delayed_until", "tomorrow")
		for name, msg := range map[string]*message.Message{
			"no UUID": message.NewMessage("", nil), "nil": nil, "a delay that is no time": broken,
		} {
			err := own.PublishContext(t.Context(), "jobs", msg)
			require.ErrorIs(t, err, outbox.ErrPoison, name)
			require.ErrorIs(t, err, queue.ErrInvalid, name)
		}
		assert.Equal(t, 2, stored())
	})
}

// TestQueueAsDestination: a forwarder publishes an outbox to the queue of another database. Copies are recognised, and
// a message that the queue refuses dies immediately and delays no other.
func TestQueueAsDestination(t *testing.T) {
	t.Parallel()
	from, to := newPgxHandle(t, newMigratedDatabase(t)), newPgxHandle(t, newMigratedDatabase(t))
	store := storeOn(t, to, queue.StoreConfig{MaxPayloadBytes: 1000})
	pub := newQueuePublisher(t, store, outbox.OwnTx)
	msgs := make([]*message.Message, 500)
	for i := range msgs {
		msgs[i] = newMessage(itoa(i))
	}
	require.NoError(t, outbox.InTx(t.Context(), from.db, func(ctx context.Context) error {
		return newOutboxPublisher(t, from).PublishContext(ctx, "jobs",
			append(slices.Clone(msgs), message.NewMessage("large", make([]byte, 2000)))...)
	}))
	f, err := forwarder.New(from.db, pub, forwarder.Config{PollInterval: 20 * time.Millisecond}, newLogCapture(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	eventually(t, func() bool {
		return from.count(t, "select count(*) from outbox where published_at is not null") == 500 &&
			from.count(t, "select count(*) from outbox where dead_at is not null and uuid = 'large'") == 1
	}, "all are published, or dead")
	cancel()
	require.NoError(t, <-ended)
	stored := func() int { return to.count(t, "select count(*) from inbox_queue where source = 'jobs'") }
	assert.Equal(t, 500, stored())
	commits := to.count(t, "select count(distinct xmin::text) from inbox_queue")
	assert.Less(t, commits, 400, "concurrent calls are committed together")
	require.NoError(t, pub.Publish("jobs", msgs...))
	assert.Equal(t, 500, stored(), "copies")
	require.NoError(t, pub.Publish("others", msgs...))
	assert.Equal(t, 1000, to.count(t, "select count(*) from inbox_queue"), "another topic, another message")
	t.Logf("%d commits", commits)
}
