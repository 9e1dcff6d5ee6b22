package integration_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wsql3 "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wsql4 "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/move"
)

func newSchemaAdapter(t testing.TB, h handle, cfg move.SchemaAdapterConfig) *move.SchemaAdapter {
	t.Helper()
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{
		Key: func(_ string, msg *message.Message) (string, error) { return "K" + msg.Metadata["n"], nil },
	}, nil)
	require.NoError(t, err)
	schema, err := move.NewSchemaAdapter(pub, cfg)
	require.NoError(t, err)
	return schema
}

// inEnvelopes returns a publisher of Watermill's forwarder.
func inEnvelopes(pub message.Publisher, topic string, marshaler wforwarder.Marshaler) message.Publisher {
	return wforwarder.NewPublisher(pub, wforwarder.PublisherConfig{ForwarderTopic: topic, Marshaler: marshaler})
}

// rowsOf returns the expected outbox rows if the first cut messages were published to one topic and the others to the
// next.
func rowsOf(msgs []*message.Message, cut int) (rows []waitingRow) {
	for i, msg := range msgs {
		topic := "orders"
		if i >= cut {
			topic = "invoices"
		}
		rows = append(rows, waitingRow{msg.UUID, topic, "K" + msg.Metadata["n"], string(msg.Payload), msg.Metadata})
	}
	return rows
}

// TestSchemaAdapter: publishers of watermill-sql write to the outbox in their transaction, byte for byte, and envelopes
// of Watermill's forwarder are unwrapped.
func TestSchemaAdapter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, topic string
		marshaler   wforwarder.Marshaler
	}{{"default", "", nil}, {"configured", "Wrapped", gobMarshaler{}}} {
		for _, driver := range []string{"pgx", "postgres"} {
			t.Run("v3 "+driver+" "+test.name, func(t *testing.T) {
				t.Parallel()
				h := newSQLHandle(t, driver, newMigratedDatabase(t))
				schema := newSchemaAdapter(t, h, move.SchemaAdapterConfig{ForwarderTopic: test.topic, Marshaler: test.marshaler})
				msgs := awkward(9)
				for _, commit := range []bool{false, true} {
					tx, err := h.sql.Begin()
					require.NoError(t, err)
					defer func() { _ = tx.Rollback() }()
					pub, err := wsql3.NewPublisher(tx, wsql3.PublisherConfig{SchemaAdapter: schema}, nil)
					require.NoError(t, err)
					require.NoError(t, pub.Publish("orders", msgs[:5]...))
					require.NoError(t, inEnvelopes(pub, test.topic, test.marshaler).Publish("invoices", msgs[5:]...))
					if !commit {
						require.NoError(t, tx.Rollback())
						assert.Empty(t, waiting(t, h))
						continue
					}
					require.NoError(t, tx.Commit())
				}
				assert.Equal(t, rowsOf(msgs, 5), waiting(t, h))
			})
		}
	}
	t.Run("v4", func(t *testing.T) {
		t.Parallel()
		h := newPgxHandle(t, newMigratedDatabase(t))
		schema := schemaV4{outbox: newSchemaAdapter(t, h, move.SchemaAdapterConfig{})}
		msgs := awkward(9)
		tx, err := h.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		pub, err := wsql4.NewPublisher(wsql4.TxFromPgx(tx), wsql4.PublisherConfig{SchemaAdapter: schema}, nil)
		require.NoError(t, err)
		require.NoError(t, pub.Publish("orders", msgs[:5]...))
		require.NoError(t, inEnvelopes(pub, "", nil).Publish("invoices", msgs[5:]...))
		assert.Empty(t, waiting(t, h))
		require.NoError(t, tx.Commit(t.Context()))
		assert.Equal(t, rowsOf(msgs, 5), waiting(t, h))

		page, err := os.ReadFile("../docs/guides/moving.md")
		require.NoError(t, err)
		shown, err := os.ReadFile("move_adapter_v4_test.go")
		require.NoError(t, err)
		assert.Contains(t, string(page), strings.TrimPrefix(string(shown), "package integration_test\n"))
	})
}

// TestSchemaAdapterRefuses: messages that cannot be stored, payloads that are not envelopes, subscribers.
func TestSchemaAdapterRefuses(t *testing.T) {
	t.Parallel()
	h := newSQLHandle(t, "pgx", newMigratedDatabase(t))
	schema := newSchemaAdapter(t, h, move.SchemaAdapterConfig{})
	pub, err := wsql3.NewPublisher(h.sql, wsql3.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, nil)
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders"), "nothing")
	for topic, msgs := range map[string][]*message.Message{
		"orders":          {newMessage("good"), message.NewMessage("", nil)},
		"forwarder_topic": {newMessage("no envelope")},
		"missing":         {nil},
	} {
		require.ErrorIs(t, pub.Publish(topic, msgs...), outbox.ErrInvalidMessage, topic)
	}
	require.ErrorContains(t, pub.Publish("forwarder_topic", newMessage("x")), "SchemaAdapterConfig.ForwarderTopic")
	assert.Empty(t, waiting(t, h))

	delayed, err := delay.NewPublisher(pub, delay.PublisherConfig{
		DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) {
			return delay.For(time.Hour),
				nil
		},
	})
	require.NoError(t, err)
	require.NoError(t, delayed.Publish("orders", newMessage("later")))
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where due_at > now() + interval '50 minutes'"))

	_, err = h.sql.Exec(schema.SelectQuery("orders", "", wsql3.DefaultPostgreSQLOffsetsAdapter{}).Query)
	require.ErrorContains(t, err, "use forwarder.Subscriber")
	_, err = schema.UnmarshalMessage(nil)
	require.ErrorContains(t, err, "use forwarder.Subscriber")
	_, err = move.NewSchemaAdapter(nil, move.SchemaAdapterConfig{})
	require.ErrorContains(t, err, "publisher is nil")
}

// TestMoveUnderTraffic: writers switch to the SchemaAdapter one after another while they write and Watermill's
// forwarder runs. Ours starts when the other has nothing left. No message is lost, none that was rolled back is
// published, and the messages of a writer are in order.
func TestMoveUnderTraffic(t *testing.T) {
	t.Parallel()
	const writers, before, after = 8, 40, 40
	h := newSQLHandle(t, "postgres", newMigratedDatabase(t))
	old := newOldForwarder(t, moveTables[0], h.url)
	sent := newFakeBroker()
	stop := old.run(t, sent)
	ours := newSchemaAdapter(t, h, move.SchemaAdapterConfig{})

	// write is one transaction of a service: a row of its own and two messages; some are rolled back.
	write := func(schema wsql3.SchemaAdapter, writer, n int) error {
		tx, err := h.sql.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		pub, err := wsql3.NewPublisher(tx, wsql3.PublisherConfig{SchemaAdapter: schema}, nil)
		if err != nil {
			return err
		}
		back := n%7 == 3
		for part := range 2 {
			msg := newMessage(fmt.Sprintf("%d/%d/%d %t", writer, n, part, back))
			msg.Metadata.Set("n", itoa(writer))
			if err := inEnvelopes(pub, "", nil).Publish("orders", msg); err != nil {
				return err
			}
		}
		if back {
			return tx.Rollback()
		}
		return tx.Commit()
	}
	wanted := func(writer int) (list []string) {
		for n := range before + after {
			for part := range 2 {
				if n%7 != 3 {
					list = append(list, fmt.Sprintf("%d/%d/%d false", writer, n, part))
				}
			}
		}
		return list
	}
	over := make(chan struct{}, writers) // a value for each writer that has switched
	drained := make(chan struct{})
	var all sync.WaitGroup
	errs := make(chan error, writers)
	for writer := range writers {
		all.Go(func() {
			for n := range before + after {
				schema := wsql3.SchemaAdapter(wsql3.DefaultPostgreSQLSchema{})
				switch turn := before/2 + writer*before/2/writers; {
				case n == turn:
					over <- struct{}{}
					fallthrough
				case n > turn:
					schema = ours
				}
				if n == before+after/2 { // the rest is written while our forwarder runs
					<-drained
				}
				if err := write(schema, writer, n); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range writers {
		within(t, "a writer switches", over)
	}
	eventually(t, func() bool { return h.count(t, drainedStatement(t)) == 0 }, "Watermill's forwarder has nothing left")
	stop()
	byWatermill := len(sent.payloads())
	w := world{handle: h, fakeBroker: sent, log: newLogCapture(t)}
	w.join(t, h, quickConfig())
	close(drained)
	all.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	for writer := range writers {
		sent.arrives(t, wanted(writer)...)
	}
	payloads := sent.payloads()
	for writer := range writers {
		got := slices.DeleteFunc(slices.Clone(payloads), func(p string) bool {
			return !strings.HasPrefix(p, itoa(writer)+"/")
		})
		assert.Equal(t, wanted(writer), got, "writer %d", writer)
	}
	t.Logf("%d messages by Watermill's forwarder, %d by ours", byWatermill, len(payloads)-byWatermill)
	assert.NotZero(t, byWatermill)
	assert.NotEqual(t, byWatermill, len(payloads))
}

// drainedStatement returns the statement of moving.md that counts the messages left for Watermill's forwarder.
func drainedStatement(t testing.TB) string {
	t.Helper()
	list := movingPage(t)["Which way"]
	require.NotEmpty(t, list)
	return strings.TrimSuffix(strings.TrimSpace(list[len(list)-1]), ";")
}
