package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/schema"
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
	}, `select id, uuid, topic, key, lane, payload, metadata::text, extract(epoch from due_at - created_at)::float8 from outbox order by id`)
	require.NoError(t, err)
	return all
}

func inTx(t testing.TB, h handle, fn func(ctx context.Context) error) error {
	t.Helper()
	return outbox.InTx(t.Context(), h.db, fn)
}

// publishInTx publishes messages in a transaction of their own, through the messages' contexts.
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
	t.Parallel()
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
		assert.Equal(t, []string{"orders", "audit"}, []string{rows[0].topic, rows[1].topic}, "what was captured comes last")
	})
}

func TestPublishWithoutTransaction(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		direct := &recorder{}
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
			direct.published = nil
			pub := decorated(t, h, outbox.PublisherConfig{WithoutTx: c.mode}, direct)
			require.ErrorIs(t, pub.Publish("orders", newMessage("a"), newMessage("b")), c.err)
			assert.Len(t, outboxRows(t, h), c.rows)
			assert.Len(t, direct.published, c.direct)
			require.ErrorIs(t, (*core.Publisher)(pub).Capture(t.Context(), "orders", newMessage("a")), outbox.ErrNoTx)

			require.NoError(t, publishInTx(t, h, pub, "orders", newMessage("in a transaction")))
			assert.Len(t, outboxRows(t, h), c.rows+1)
			assert.Len(t, direct.published, c.direct)
		}

		var ended context.Context
		require.NoError(t, inTx(t, h, func(ctx context.Context) error { ended = ctx; return nil }))
		err := newOutboxPublisher(t, h).PublishContext(ended, "orders", newMessage("too late"))
		require.ErrorIs(t, err, outbox.ErrNoTx)
	})
}

// decorated is what outbox.Decorator makes of a publisher.
func decorated(t testing.TB, h handle, cfg outbox.PublisherConfig, pub message.Publisher) *outbox.Publisher {
	t.Helper()
	decorate, err := outbox.Decorator(h.db, cfg, nil)
	require.NoError(t, err)
	decorating, err := decorate(pub)
	require.NoError(t, err)
	return decorating.(*outbox.Publisher)
}

// recorder is a publisher that remembers.
type recorder struct{ published []*message.Message }

func (r *recorder) Publish(_ string, msgs ...*message.Message) error {
	r.published = append(r.published, msgs...)
	return nil
}

func (r *recorder) Close() error { return nil }

func TestDecoratorWritesInsideTransactionsAlone(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		direct := &recorder{}
		pub := decorated(t, h, outbox.PublisherConfig{WithoutTx: outbox.PassThrough}, direct)
		require.NoError(t, pub.Publish("orders", newMessage("outside")))
		require.NoError(t, publishInTx(t, h, pub, "orders", newMessage("inside")))
		require.NoError(t, pub.Close())
		require.NoError(t, pub.Close())
		require.NoError(t, publishInTx(t, h, pub, "orders", newMessage("after Close")))
		assert.Len(t, direct.published, 1)
		assert.Len(t, outboxRows(t, h), 2)
	})
}

func TestPublishRefusesMixedTransactions(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		other := newPgxHandle(t, h.url)
		err := inTx(t, h, func(a context.Context) error {
			return outbox.InTx(context.Background(), h.db, func(b context.Context) error {
				first, second, none := newMessage("a"), newMessage("b"), newMessage("c")
				first.SetContext(a)
				second.SetContext(b)
				require.ErrorIs(t, pub.Publish("orders", first, second), outbox.ErrMixedTx)
				require.ErrorIs(t, pub.Publish("orders", first, none), outbox.ErrMixedTx)
				require.ErrorIs(t, pub.Publish("orders", none, first), outbox.ErrMixedTx)

				require.ErrorIs(t, outbox.InTx(a, other.db, func(context.Context) error { return nil }), outbox.ErrOtherDB)
				require.ErrorIs(t, newOutboxPublisher(t, other).PublishContext(a, "orders", newMessage("")), outbox.ErrOtherDB)
				require.ErrorIs(t, (*core.Publisher)(newOutboxPublisher(t, other)).Capture(a, "orders", newMessage("")), outbox.ErrOtherDB)

				return outbox.InTx(a, h.db, func(inner context.Context) error { // a savepoint is the same transaction
					second.SetContext(inner)
					return pub.Publish("orders", first, second)
				})
			})
		})
		require.NoError(t, err)
		assert.Len(t, outboxRows(t, h), 2)
	})
}

func TestBadInputLeavesNothing(t *testing.T) {
	t.Parallel()
	bad := func(change func(msg *message.Message)) []*message.Message {
		msg := newMessage("x")
		change(msg)
		return []*message.Message{newMessage("good"), msg}
	}
	meta := func(key, value string) []*message.Message {
		return bad(func(msg *message.Message) { msg.Metadata.Set(key, value) })
	}
	cases := map[string]struct {
		topic string
		msgs  []*message.Message
		says  string
	}{
		"no uuid":              {"orders", bad(func(msg *message.Message) { msg.UUID = "" }), "watermill.NewUUID()"},
		"uuid too long":        {"orders", bad(func(msg *message.Message) { msg.UUID = strings.Repeat("u", 256) }), "256 bytes"},
		"uuid not UTF-8":       {"orders", bad(func(msg *message.Message) { msg.UUID = "\xff" }), "UTF-8"},
		"nil message":          {"orders", []*message.Message{newMessage("good"), nil}, "message 1"},
		"empty topic":          {"", bad(func(*message.Message) {}), "topic is empty"},
		"topic with NUL":       {"a\x00b", bad(func(*message.Message) {}), "NUL"},
		"topic not UTF-8":      {"a\xffb", bad(func(*message.Message) {}), "UTF-8"},
		"topic too long":       {strings.Repeat("t", 1025), bad(func(*message.Message) {}), "1025 bytes"},
		"metadata key NUL":     {"orders", meta("a\x00b", "v"), "metadata"},
		"metadata value NUL":   {"orders", meta("k", "a\x00b"), "metadata"},
		"metadata key UTF-8":   {"orders", meta("a\xff", "v"), "metadata"},
		"metadata val UTF-8":   {"orders", meta("k", "\xc3\x28"), "metadata"},
		"metadata too large":   {"orders", meta("k", strings.Repeat("x", 1<<20)), "metadata has"},
		"payload too large":    {"orders", bad(func(msg *message.Message) { msg.Payload = make([]byte, 1001) }), "MaxPayloadBytes is 1000"},
		"key of 10 KB":         {"orders", meta(outbox.MetadataKey, strings.Repeat("k", 10240)), "10240 bytes"},
		"key with NUL":         {"orders", meta(outbox.MetadataKey, "a\x00"), "NUL"},
		"delayed until when":   {"orders", meta(delay.DelayedUntilKey, "tomorrow"), "RFC 3339"},
		"delayed until year 0": {"orders", meta(delay.DelayedUntilKey, "0000-01-01T00:00:00Z"), "RFC 3339"},
		"delayed for what":     {"orders", meta(delay.DelayedForKey, "a while"), "duration"},
	}
	forEachHandle(t, func(t *testing.T, h handle) {
		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{MaxPayloadBytes: 1000, WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				for _, publish := range []func(context.Context) error{
					func(context.Context) error { return pub.Publish(c.topic, c.msgs...) }, // in a transaction of its own
					func(ctx context.Context) error { return pub.PublishContext(ctx, c.topic, c.msgs...) },
					func(ctx context.Context) error { return (*core.Publisher)(pub).Capture(ctx, c.topic, c.msgs...) },
				} {
					err := inTx(t, h, func(ctx context.Context) error {
						err := publish(ctx)
						require.ErrorIs(t, err, outbox.ErrInvalidMessage)
						require.ErrorContains(t, err, c.says)
						return nil // the transaction can go on: nothing was sent
					})
					require.NoError(t, err)
				}
				assert.Empty(t, outboxRows(t, h))
			})
		}
	})
}

func TestMissingTablesNameTheCure(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	for _, h := range openHandles(t, url) {
		for _, names := range []sqltext.Tables{{}, {Schema: "nowhere"}, {Outbox: "unknown"}} {
			pub := newOutboxPublisher(t, h.with(t, names))
			err := inTx(t, h, func(ctx context.Context) error { return pub.PublishContext(ctx, "orders", newMessage("")) })
			require.ErrorContains(t, err, "schema.Migrate", h.name)
			assert.Equal(t, "42P01", text.SQLState(err), h.name)
			err = inTx(t, h, func(ctx context.Context) error { return (*core.Publisher)(pub).Capture(ctx, "orders", newMessage("")) })
			require.ErrorContains(t, err, "schema.Migrate", h.name)
			require.NotErrorIs(t, err, outbox.ErrCommitUnknown, h.name)
		}
	}
	h := newPgxHandle(t, url)
	require.NoError(t, makeTables(t.Context(), h.db))
	h.exec(t, "alter table outbox drop column metadata")
	err := publishInTx(t, h, newOutboxPublisher(t, h), "orders", newMessage(""))
	require.ErrorContains(t, err, "schema.Migrate")
}

func TestPublishNothing(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		require.NoError(t, pub.Publish("orders"), "no message needs no transaction")
		require.NoError(t, publishInTx(t, h, pub, "orders"))
		assert.Empty(t, outboxRows(t, h))
	})
}

func TestPublishManyKeepsTheirOrder(t *testing.T) {
	t.Parallel()
	const n = 100_000
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		msgs := make([]*message.Message, n)
		uuids := make([]string, n)
		for i := range msgs {
			msgs[i] = newMessage(fmt.Sprint(i))
			uuids[i] = msgs[i].UUID
		}
		msgs[n-1].UUID = ""
		require.ErrorIs(t, publishInTx(t, h, pub, "orders", msgs...), outbox.ErrInvalidMessage)
		require.Zero(t, h.count(t, "select count(*) from outbox"), "one bad message and none is written")

		msgs[n-1].UUID = uuids[n-1]
		require.NoError(t, publishInTx(t, h, pub, "orders", msgs...))
		assert.True(t, slices.Equal(uuids, column[string](t, h, "select uuid from outbox order by id")))

		h.exec(t, "truncate outbox")
		msgs, uuids = msgs[:2500], uuids[:2500]
		require.NoError(t, inTx(t, h, func(ctx context.Context) error { return (*core.Publisher)(pub).Capture(ctx, "orders", msgs...) }))
		assert.True(t, slices.Equal(uuids, column[string](t, h, "select uuid from outbox order by id")), "in several statements with COMMIT")
	})
}

// TestPublishFailingHalfWay has a later chunk of one call fail in the database.
func TestPublishFailingHalfWay(t *testing.T) {
	t.Parallel()
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

func oddPayloads() map[string][]byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return map[string][]byte{
		"nil": nil, "empty": {}, "every byte": every, "zeros": make([]byte, 1000), "text": []byte(`{"a":"\\x00\"'"}`),
		"looks like hex": []byte(`\x00ff`), "invalid UTF-8": {0xff, 0xfe}, "NULL": []byte("NULL"),
		"5 MB": bytes.Repeat(every, 5<<20/256),
	}
}

func oddMetadata() map[string]string {
	odd := map[string]string{
		"": "empty key", "empty value": "", `quotes "'` + "`": `"'` + "`", `backslash \`: `\\x00 \u0000 \"`,
		"html <>&": "<script>&amp;</script>", "unicode ☃ é 日本": "😀 \u2028 \u2029 \ufffd \u200b", "controls": "\x01\t\r\n\x1f\x7f",
		"array {": `{"a",b,NULL}`, "NULL": "NULL", "json": `{"a":[1,null]}`, "dollar $1": "$1 :a @b ?", "%s": "%d",
	}
	for i := range 128 {
		if i > 0 {
			odd[fmt.Sprintf("ascii %d %c", i, rune(i))] = string(rune(i))
		}
	}
	return odd
}

func TestBytesComeOutAsTheyWentIn(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) { roundTrip(t, h) })
}

func roundTrip(t *testing.T, h handle) {
	h.exec(t, "delete from outbox")
	pub := newOutboxPublisher(t, h)
	const odd = `uuid \"'{},NULL ☃ 😀`
	for name, payload := range oddPayloads() {
		msg := message.NewMessage(watermill.NewUUID(), payload)
		msg.Metadata.Set("name", name)
		require.NoError(t, publishInTx(t, h, pub, "orders", msg), name)
	}
	msg := message.NewMessage(odd, message.Payload("x"))
	msg.Metadata = oddMetadata()
	msg.Metadata.Set(outbox.MetadataKey, odd)
	require.NoError(t, publishInTx(t, h, pub, odd, msg))
	msg = message.NewMessage("no metadata", nil)
	msg.Metadata = nil
	require.NoError(t, publishInTx(t, h, pub, "NULL", msg))

	payloads := oddPayloads()
	for _, row := range outboxRows(t, h) {
		switch row.uuid {
		case odd:
			want := oddMetadata()
			want[outbox.MetadataKey] = odd
			assert.Equal(t, want, row.metadata)
			assert.Equal(t, odd, row.topic)
			assert.Equal(t, odd, row.key)
		case "no metadata":
			assert.Empty(t, row.metadata)
			assert.NotNil(t, row.metadata)
			assert.Equal(t, "NULL", row.topic)
		default:
			name := row.metadata["name"]
			want, ok := payloads[name]
			require.True(t, ok, name)
			delete(payloads, name)
			assert.True(t, bytes.Equal(want, row.payload), name)
		}
	}
	assert.Empty(t, payloads)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		explicit, aggregate, both, none, emptied := newMessage(""), newMessage(""), newMessage(""), newMessage(""), newMessage("")
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

		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{Key: func(topic string, msg *message.Message) (string, error) {
			return topic + ":" + string(msg.Payload), nil
		}}, nil)
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
			from, to time.Duration // due after the insert
		}{
			"SetDelay":          {func(msg *message.Message) { outbox.SetDelay(msg, 90*time.Second) }, 90 * time.Second, 91 * time.Second},
			"SetDelay nothing":  {func(msg *message.Message) { outbox.SetDelay(msg, 0) }, 0, time.Second},
			"SetDelay the past": {func(msg *message.Message) { outbox.SetDelay(msg, -time.Hour) }, 0, time.Second},
			"SetDueAt": {func(msg *message.Message) {
				outbox.SetDueAt(msg, time.Now().Add(time.Hour).In(time.FixedZone("far", 9*3600)))
			}, 59 * time.Minute, time.Hour},
			"SetDueAt the past": {func(msg *message.Message) { outbox.SetDueAt(msg, time.Unix(0, 0)) }, -100 * 365 * 24 * time.Hour, -time.Hour},
			"watermill For":     {func(msg *message.Message) { delay.Message(msg, delay.For(time.Hour)) }, 59 * time.Minute, time.Hour},
			"watermill Until":   {func(msg *message.Message) { delay.Message(msg, delay.Until(time.Now().Add(time.Hour))) }, 59 * time.Minute, time.Hour},
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
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
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

func TestPublishThroughPgBouncer(t *testing.T) {
	t.Parallel()
	forEachPgBouncerHandle(t, func(t *testing.T, h handle) {
		roundTrip(t, h)
		h.exec(t, "delete from outbox")
		pub := newOutboxPublisher(t, h)
		for range 20 {
			require.NoError(t, inTx(t, h, func(ctx context.Context) error {
				if err := (*core.Publisher)(pub).Capture(ctx, "orders", newMessage("")); err != nil {
					return err
				}
				return pub.PublishContext(ctx, "orders", newMessage(""))
			}))
			failure := errors.New("no")
			require.ErrorIs(t, inTx(t, h, func(ctx context.Context) error {
				require.NoError(t, pub.PublishContext(ctx, "orders", newMessage("")))
				return failure
			}), failure)
		}
		assert.Equal(t, 40, h.count(t, "select count(*) from outbox"))
		require.NoError(t, schema.Check(t.Context(), h.db))
	})
}
