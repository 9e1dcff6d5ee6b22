package integration_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		explicit, aggregate, both, none, emptied := newMessage(""), newMessage(""), newMessage(""), newMessage(""),
			newMessage("")
		outbox.SetKey(explicit, "k1")
		outbox.SetAggregate(aggregate, "order", "7")
		outbox.SetAggregate(both, "order", "7")
		outbox.SetKey(both, "k1")
		outbox.SetAggregate(emptied, "order", "7")
		outbox.SetKey(emptied, "")
		require.NoError(t, publishInTx(t, h, newOutboxPublisher(t, h), "orders", explicit, aggregate, both, none, emptied))
		rows := outboxRows(t, h)
		keys := make([]string, len(rows))
		for i, row := range rows {
			keys[i] = row.key
			assert.True(t, row.lane >= 0 && row.lane < 64, row.lane)
		}
		assert.Equal(t, []string{"k1", "order/7", "k1", "", ""}, keys)
		assert.Equal(t, rows[0].lane, rows[2].lane)

		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{
			Key: func(topic string, msg *message.Message) (string, error) {
				return topic + ":" + string(msg.Payload), nil
			},
		}, nil)
		require.NoError(t, err)
		require.NoError(t, publishInTx(t, h, pub, "carts", newMessage("p")))
		assert.Equal(t, "carts:p", value[string](t, h, "select key from outbox where topic = 'carts'"))
	})
}

func TestDelays(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		for name, c := range map[string]struct {
			set      func(msg *message.Message)
			from, to time.Duration // due after the insert; none = it is ready at once, in its place
		}{
			"SetDelay": {func(msg *message.Message) {
				outbox.SetDelay(msg, 90*time.Second)
			}, 90 * time.Second, 91 * time.Second},
			"SetDelay nothing":  {func(msg *message.Message) { outbox.SetDelay(msg, 0) }, 0, 0},
			"SetDelay the past": {func(msg *message.Message) { outbox.SetDelay(msg, -time.Hour) }, 0, 0},
			"SetDueAt": {func(msg *message.Message) {
				outbox.SetDueAt(msg, time.Now().Add(time.Hour).In(time.FixedZone("far", 9*3600)))
			}, 59 * time.Minute, time.Hour},
			"SetDueAt the past": {func(msg *message.Message) { outbox.SetDueAt(msg, time.Unix(0, 0)) }, 0, 0},
			"watermill For": {func(msg *message.Message) {
				delay.Message(msg, delay.For(time.Hour))
			}, 59 * time.Minute, time.Hour},
			"watermill Until": {func(msg *message.Message) {
				delay.Message(msg, delay.Until(time.Now().Add(time.Hour)))
			}, 59 * time.Minute, time.Hour},
			"the last one counts": {func(msg *message.Message) {
				outbox.SetDelay(msg, time.Minute)
				outbox.SetDueAt(msg, time.Now().Add(time.Hour))
			}, 59 * time.Minute, time.Hour},
		} {
			h.exec(t, "delete from outbox")
			late, ready := newMessage("late"), newMessage("ready")
			c.set(late)
			require.NoError(t, publishInTx(t, h, pub, "orders", ready, late, newMessage("ready too")), name)
			rows := outboxRows(t, h)
			require.Len(t, rows, 3)
			assert.Nil(t, rows[0].wait, name)
			assert.Nil(t, rows[2].wait, name)
			if c.to == 0 {
				assert.Nil(t, rows[1].wait, name)
				continue
			}
			require.NotNil(t, rows[1].wait, name)
			wait := time.Duration(*rows[1].wait * float64(time.Second))
			assert.True(t, wait >= c.from-2*time.Second && wait <= c.to+2*time.Second, "%s: %s", name, wait)
		}

		ctx := delay.WithContext(t.Context(), delay.For(time.Hour))
		wrapped, err := delay.NewPublisher(pub, delay.PublisherConfig{})
		require.NoError(t, err)
		h.exec(t, "delete from outbox")
		require.NoError(t, outbox.InTx(ctx, h.db, func(ctx context.Context) error {
			msg := newMessage("by context")
			msg.SetContext(ctx)
			return wrapped.Publish("orders", msg)
		}))
		assert.NotNil(t, outboxRows(t, h)[0].wait, "Watermill's delaying publisher around ours")
	})
}

// TestForeignSQL writes rows by COPY and by plain SQL, without this library: the defaults give them what
// the exact order needs.
func TestForeignSQL(t *testing.T) {
	h := onPgx(t)
	require.NoError(t, publishInTx(t, h, newOutboxPublisher(t, h), "library", keyed("shared"), keyed("")))
	h.exec(t, `insert into outbox (uuid, topic, key, payload) values ('s1', 'sql', 'shared', 'x'), ('s2', 'sql', '', 'y')`)
	conn, err := h.pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader("c1\tcopy\tshared\tx\nc2\tcopy\t\ty\n"),
		"copy outbox (uuid, topic, key, payload) from stdin")
	require.NoError(t, err)

	rows := outboxRows(t, h)
	require.Len(t, rows, 6)
	for i, row := range rows {
		assert.EqualValues(t, i+1, row.id)
		assert.Equal(t, map[string]string{}, withoutKey(row.metadata))
		if row.key == "shared" {
			assert.Equal(t, rows[0].lane, row.lane)
		}
	}
	_, err = conn.Exec(t.Context(), `insert into outbox (uuid, topic, payload, lane) values ('s3', 'sql', 'x', 1)`)
	require.Error(t, err, "the lane is the database's to compute")
	conn.Release()
}

func keyed(key string) *message.Message {
	msg := newMessage("x")
	outbox.SetKey(msg, key)
	return msg
}

func withoutKey(metadata map[string]string) map[string]string {
	delete(metadata, outbox.MetadataKey)
	return metadata
}
