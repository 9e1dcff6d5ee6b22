package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// stored is a row of the outbox.
type stored struct {
	id         int64
	uuid       string
	topic, key string
	lane       int64
	payload    []byte
	metadata   map[string]string
	wait       *float64 // seconds from the insert until it is due
}

func outboxRows(t testing.TB, h handle) []stored {
	t.Helper()
	var all []stored
	err := drive.Collect(t.Context(), (*core.DB)(h.db), func(rows drive.Rows) error {
		var s stored
		var metadata []byte
		if err := rows.Scan(&s.id, &s.uuid, &s.topic, &s.key, &s.lane, &s.payload, &metadata, &s.wait); err != nil {
			return err
		}
		all = append(all, s)
		return json.Unmarshal(metadata, &all[len(all)-1].metadata)
	}, `select id, uuid, topic, key, lane, payload, metadata::text, extract(epoch from due_at - created_at)::float8 `+
		`from outbox order by id`)
	require.NoError(t, err)
	return all
}

func inTx(t testing.TB, h handle, fn func(ctx context.Context) error) error {
	t.Helper()
	return outbox.InTx(t.Context(), h.db, fn)
}

// publishInTx publishes messages in one transaction, through the messages' contexts.
func publishInTx(t testing.TB, h handle, pub message.Publisher, topic string, msgs ...*message.Message) error {
	t.Helper()
	return inTx(t, h, func(ctx context.Context) error {
		for _, msg := range msgs {
			msg.SetContext(ctx)
		}
		return pub.Publish(topic, msgs...)
	})
}

func TestPublishIsAtomicWithTheTransaction(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		h.exec(t, "create table orders (id int primary key)")
		place := func(id int, fail error) error {
			return inTx(t, h, func(ctx context.Context) error {
				if err := h.execTx(ctx, "insert into orders values ($1)", id); err != nil {
					return err
				}
				msg := newMessage(fmt.Sprint(id))
				msg.SetContext(ctx)
				if err := pub.Publish("orders", msg); err != nil {
					return err
				}
				if err := (*core.Publisher)(pub).Capture(ctx, "audit", newMessage("captured")); err != nil {
					return err
				}
				return fail
			})
		}
		require.NoError(t, place(1, nil))
		failure := errors.New("no")
		require.ErrorIs(t, place(2, failure), failure)
		require.Panics(t, func() {
			_ = inTx(t, h, func(ctx context.Context) error {
				assert.NoError(t, pub.PublishContext(ctx, "orders", newMessage("3")))
				panic("handler")
			})
		})

		assert.Equal(t, []int64{1}, column[int64](t, h, "select id from orders"))
		rows := outboxRows(t, h)
		require.Len(t, rows, 2)
		assert.Equal(t, []string{"orders", "audit"}, []string{rows[0].topic, rows[1].topic}, "captured messages are last")
	})
}

func TestPublishWithoutTransaction(t *testing.T) {
	h := onPgx(t)
	direct := &published{}
	for _, c := range []struct {
		mode         outbox.WithoutTx
		err          error
		rows, direct int
	}{
		{outbox.RequireTx, outbox.ErrNoTx, 0, 0},
		{outbox.OwnTx, nil, 2, 0},
		{outbox.PassThrough, nil, 0, 2},
	} {
		h.exec(t, "delete from outbox")
		direct.all = nil
		pub := decorated(t, h, outbox.PublisherConfig{WithoutTx: c.mode}, direct)
		require.ErrorIs(t, pub.Publish("orders", newMessage("a"), newMessage("b")), c.err)
		assert.Len(t, outboxRows(t, h), c.rows)
		assert.Len(t, direct.all, c.direct)
		require.ErrorIs(t, (*core.Publisher)(pub).Capture(t.Context(), "orders", newMessage("a")), outbox.ErrNoTx)

		require.NoError(t, publishInTx(t, h, pub, "orders", newMessage("in a transaction")))
		require.NoError(t, pub.Close())
		require.NoError(t, pub.Close())
		require.NoError(t, publishInTx(t, h, pub, "orders", newMessage("after Close")))
		assert.Len(t, outboxRows(t, h), c.rows+2)
		assert.Len(t, direct.all, c.direct)
	}

	var ended context.Context
	require.NoError(t, inTx(t, h, func(ctx context.Context) error { ended = ctx; return nil }))
	err := newOutboxPublisher(t, h).PublishContext(ended, "orders", newMessage("too late"))
	require.ErrorIs(t, err, outbox.ErrNoTx)
}

// decorated returns pub decorated by outbox.Decorator.
func decorated(t testing.TB, h handle, cfg outbox.PublisherConfig, pub message.Publisher) *outbox.Publisher {
	t.Helper()
	decorate, err := outbox.Decorator(h.db, cfg, nil)
	require.NoError(t, err)
	decorating, err := decorate(pub)
	require.NoError(t, err)
	return decorating.(*outbox.Publisher)
}

func TestPublishRefusesMixedTransactions(t *testing.T) {
	h := onPgx(t)
	pub := newOutboxPublisher(t, h)
	other := newPgxHandle(t, h.url)
	err := inTx(t, h, func(a context.Context) error {
		return outbox.InTx(context.Background(), h.db, func(b context.Context) error {
			first, second, none := newMessage("a"), newMessage("b"), newMessage("c")
			first.SetContext(a)
			second.SetContext(b)
			require.ErrorIs(t, pub.Publish("orders", first, second), core.ErrMixedTx)
			require.ErrorIs(t, pub.Publish("orders", first, none), core.ErrMixedTx)
			require.ErrorIs(t, pub.Publish("orders", none, first), core.ErrMixedTx)

			require.ErrorIs(t, outbox.InTx(a, other.db, func(context.Context) error { return nil }), outbox.ErrOtherDB)
			require.ErrorIs(t, newOutboxPublisher(t, other).PublishContext(a, "orders", newMessage("")), outbox.ErrOtherDB)
			require.ErrorIs(t, (*core.Publisher)(newOutboxPublisher(t, other)).Capture(a, "orders", newMessage("")),
				outbox.ErrOtherDB)

			return outbox.InTx(a, h.db, func(inner context.Context) error { // a savepoint is the same transaction
				second.SetContext(inner)
				return pub.Publish("orders", first, second)
			})
		})
	})
	require.NoError(t, err)
	assert.Len(t, outboxRows(t, h), 2)
}

func TestMissingTablesNameTheCure(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	overEach(t, url, func(t *testing.T, h handle) {
		for _, names := range []sqltext.Tables{{}, {Schema: "nowhere"}, {Outbox: "unknown"}} {
			pub := newOutboxPublisher(t, h.with(t, names))
			err := inTx(t, h, func(ctx context.Context) error { return pub.PublishContext(ctx, "orders", newMessage("")) })
			require.ErrorContains(t, err, "schema.Migrate", h.name)
			assert.Equal(t, "42P01", text.SQLState(err), h.name)
			err = inTx(t, h, func(ctx context.Context) error {
				return (*core.Publisher)(pub).Capture(ctx, "orders", newMessage(""))
			})
			require.ErrorContains(t, err, "schema.Migrate", h.name)
			require.NotErrorIs(t, err, outbox.ErrCommitUnknown, h.name)
		}
	})
	h := newPgxHandle(t, url)
	require.NoError(t, makeTables(t.Context(), h.db))
	h.exec(t, "alter table outbox drop column metadata")
	err := publishInTx(t, h, newOutboxPublisher(t, h), "orders", newMessage(""))
	require.ErrorContains(t, err, "schema.Migrate")
}

func TestPublishManyKeepsTheirOrder(t *testing.T) {
	extended(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		const n = 5_000 // five statements
		pub := newOutboxPublisher(t, h)
		msgs := make([]*message.Message, n)
		uuids := make([]string, n)
		for i := range msgs {
			msgs[i] = newMessage(fmt.Sprint(i))
			uuids[i] = msgs[i].UUID
		}
		msgs[n-1].UUID = ""
		require.ErrorIs(t, publishInTx(t, h, pub, "orders", msgs...), outbox.ErrInvalidMessage)
		require.Zero(t, h.count(t, "select count(*) from outbox"), "with one bad message, none is written")

		msgs[n-1].UUID = uuids[n-1]
		require.NoError(t, publishInTx(t, h, pub, "orders", msgs...))
		assert.True(t, slices.Equal(uuids, column[string](t, h, "select uuid from outbox order by id")))

		h.exec(t, "truncate outbox")
		msgs, uuids = msgs[:2500], uuids[:2500]
		require.NoError(t, inTx(t, h, func(ctx context.Context) error {
			return (*core.Publisher)(pub).Capture(ctx, "orders", msgs...)
		}))
		assert.True(t, slices.Equal(uuids, column[string](t, h, "select uuid from outbox order by id")),
			"in several statements with COMMIT")
	})
}

// TestPublishFailingHalfWay makes a later chunk of one call fail in the database.
func TestPublishFailingHalfWay(t *testing.T) {
	needsPlainOutbox(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		h.exec(t, "create unique index on outbox (uuid)")
		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		msgs := make([]*message.Message, 3000)
		for i := range msgs {
			msgs[i] = newMessage("")
		}
		msgs[2999].UUID = msgs[0].UUID
		for range 2 {
			err = pub.Publish("orders", msgs...)
			assert.Equal(t, "23505", text.SQLState(err))
			require.NotErrorIs(t, err, outbox.ErrCommitUnknown)
		}
		assert.Zero(t, h.count(t, "select count(*) from outbox"))
	})
}

func TestPublishThroughPgBouncer(t *testing.T) {
	extended(t)
	t.Parallel()
	forEachPgBouncerHandle(t, func(t *testing.T, h handle) {
		roundTrip(t, h)
		require.NoError(t, checkSchema(t.Context(), h.db))
	})
}

// TestSwallowedInserts: if a trigger or a rule suppresses inserts, the caller gets ErrNotStored, and Check names the
// trigger or the rule.
func TestSwallowedInserts(t *testing.T) {
	t.Parallel()
	const trigger = "create function swallow() returns trigger language plpgsql as 'begin return null; end'; " +
		"create trigger swallow before insert on %s for each row execute function swallow()"
	for how, sql := range map[string]string{
		"trigger": trigger, "rule": "create rule swallow as on insert to %s do instead nothing",
	} {
		for _, table := range []string{"outbox", "inbox", "inbox_queue"} {
			t.Run(table+" "+how, func(t *testing.T) {
				test := func(t *testing.T, h handle) {
					h.exec(t, fmt.Sprintf(sql, table))
					found, err := schemaProblems(t.Context(), h.db)
					require.NoError(t, err)
					require.Len(t, found, 1)
					assert.Equal(t, how+" swallow of table "+table, found[0].Object)
					switch table {
					case "outbox":
						pub := newOutboxPublisher(t, h)
						require.ErrorIs(t, publishInTx(t, h, pub, "orders", newMessage("1")), outbox.ErrNotStored)
						_, err = chain(func(*message.Message) ([]*message.Message, error) {
							return message.Messages{newMessage("2")}, nil
						}, stack(t, h, middleware.StackConfig{})...)(newMessage("in"))
						require.ErrorIs(t, err, outbox.ErrNotStored)
						assert.Zero(t, h.count(t, "select count(*) from inbox where processed_at is not null"))
					case "inbox":
						_, err = chain(func(*message.Message) ([]*message.Message, error) {
							t.Error("the handler was called")
							return nil, nil
						}, newTx(t, h, middleware.TxConfig{}), newInbox(t, h, middleware.InboxConfig{}))(newMessage("in"))
						require.ErrorIs(t, err, outbox.ErrNotStored)
					default:
						_, err = storeOn(t, h, quickStore()).Enqueue(t.Context(), queue.Item{
							ID: queue.ID{Source: "s", MessageID: "1"}, Topic: "orders",
						})
						require.ErrorIs(t, err, outbox.ErrNotStored)
					}
				}
				if how == "rule" { // the server's reply is that to a trigger
					test(t, onPgx(t))
				} else {
					forEachHandle(t, test)
				}
			})
		}
	}
}
