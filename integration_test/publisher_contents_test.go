package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
)

func TestBadInputLeavesNothing(t *testing.T) {
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
		"no uuid":            {"orders", bad(func(msg *message.Message) { msg.UUID = "" }), "watermill.NewUUID()"},
		"nil message":        {"orders", []*message.Message{newMessage("good"), nil}, "message 1"},
		"empty topic":        {"", bad(func(*message.Message) {}), "topic is empty"},
		"topic with NUL":     {"a\x00b", bad(func(*message.Message) {}), "NUL"},
		"topic not UTF-8":    {"a\xffb", bad(func(*message.Message) {}), "UTF-8"},
		"topic too long":     {strings.Repeat("t", 1025), bad(func(*message.Message) {}), "1025 bytes"},
		"metadata not UTF-8": {"orders", meta("k", "\xc3\x28"), "metadata"},
		"metadata too large": {"orders", meta("k", strings.Repeat("x", 1<<20)), "metadata has"},
		"payload too large": {"orders", bad(func(msg *message.Message) {
			msg.Payload = make([]byte, 1001)
		}), "MaxPayloadBytes is 1000"},
		"key of 10 KB":       {"orders", meta(outbox.MetadataKey, strings.Repeat("k", 10240)), "10240 bytes"},
		"delayed until when": {"orders", meta(delay.DelayedUntilKey, "tomorrow"), "RFC 3339"},
		"delayed for what":   {"orders", meta(delay.DelayedForKey, "a while"), "duration"},
	}
	h := onPgx(t)
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{MaxPayloadBytes: 1000, WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for _, publish := range []func(context.Context) error{
				func(context.Context) error { return pub.Publish(c.topic, c.msgs...) }, // in its own transaction
				func(ctx context.Context) error { return pub.PublishContext(ctx, c.topic, c.msgs...) },
				func(ctx context.Context) error { return (*core.Publisher)(pub).Capture(ctx, c.topic, c.msgs...) },
			} {
				err := inTx(t, h, func(ctx context.Context) error {
					err := publish(ctx)
					require.ErrorIs(t, err, outbox.ErrInvalidMessage)
					require.ErrorContains(t, err, c.says)
					return nil // the transaction is still usable: nothing was sent
				})
				require.NoError(t, err)
			}
			assert.Empty(t, outboxRows(t, h))
		})
	}
}

func oddPayloads() map[string][]byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return map[string][]byte{
		"nil": nil, "empty": {}, "every byte": every, "zeros": make([]byte, 1000), "text": []byte(`{"a":"\\x00\"'"}`),
		"looks like hex": []byte(`\x00ff`), "invalid UTF-8": {0xff, 0xfe}, "NULL": []byte("NULL"),
		"1 MB": bytes.Repeat(every, 1<<20/256),
	}
}

func oddMetadata() map[string]string {
	odd := map[string]string{
		"": "empty key", "empty value": "", `quotes "'` + "`": `"'` + "`", `backslash \`: `\\x00 \u0000 \"`,
		"html <>&": "<script>&amp;</script>", "unicode ☃ é 日本": "😀 \u2028 \u2029 \ufffd \u200b",
		"controls": "\x01\t\r\n\x1f\x7f",
		"array {":  `{"a",b,NULL}`, "NULL": "NULL", "json": `{"a":[1,null]}`, "dollar $1": "$1 :a @b ?", "%s": "%d",
	}
	for i := range 128 {
		if i > 0 {
			odd[fmt.Sprintf("ascii %d %c", i, rune(i))] = string(rune(i))
		}
	}
	return odd
}

func TestBytesComeOutAsTheyWentIn(t *testing.T) {
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
	h := onPgx(t)
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
}

func TestDelays(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		pub := newOutboxPublisher(t, h)
		for name, c := range map[string]struct {
			set      func(msg *message.Message)
			from, to time.Duration // limits of the delay after the insert; none = ready immediately, in its place
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
			"the last setting counts": {func(msg *message.Message) {
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
	})
}

// TestForeignSQL writes rows by COPY and by plain SQL, without this library: column defaults provide what the exact
// order needs.
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
	require.Error(t, err, "only the database may compute the lane")
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

// TestWatermillsDelays: however Watermill expresses a delay, the outbox waits, for any broker.
func TestWatermillsDelays(t *testing.T) {
	h := onPgx(t)
	pub := newOutboxPublisher(t, h)
	delaying, err := delay.NewPublisher(pub, delay.PublisherConfig{AllowNoDelay: true})
	require.NoError(t, err)
	always, err := delay.NewPublisher(pub, delay.PublisherConfig{
		DefaultDelayGenerator: func(delay.DefaultDelayGeneratorParams) (delay.Delay, error) {
			return delay.For(2 * time.Hour), nil
		},
	})
	require.NoError(t, err)
	type Placed struct{ ID string }
	bus, err := cqrs.NewEventBusWithConfig(delaying, cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "bus", nil },
		Marshaler:            cqrs.JSONMarshaler{},
	})
	require.NoError(t, err)
	require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		require.NoError(t, bus.Publish(delay.WithContext(ctx, delay.Until(time.Now().Add(3*time.Hour))), Placed{"1"}))
		require.NoError(t, bus.Publish(ctx, Placed{"2"}))
		generated := newMessage("")
		generated.SetContext(ctx)
		return always.Publish("generated", generated)
	}))
	assert.Equal(t, []string{"bus 3", "bus ready", "generated 2"}, column[string](t, h,
		`select topic || ' ' || coalesce(round(extract(epoch from due_at - created_at) / 3600)::text, 'ready') `+
			`from outbox order by id`))
}

// TestCopiedMetadataDelaysOnce: a message with the metadata of a delayed message is not delayed again, and keeps its
// place among those of its key.
func TestCopiedMetadataDelaysOnce(t *testing.T) {
	h := onPgx(t)
	received := make(chan message.Metadata, 3)
	w := startForwarderOn(t, h, quickConfig(), func(topic string, msg *message.Message) error {
		if topic == "first" {
			received <- maps.Clone(msg.Metadata)
		}
		return nil
	})
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	for _, set := range []func(*message.Message){
		func(msg *message.Message) { outbox.SetDelay(msg, 50*time.Millisecond) },
		func(msg *message.Message) { outbox.SetDueAt(msg, time.Now().Add(50*time.Millisecond)) },
		func(msg *message.Message) { delay.Message(msg, delay.For(time.Second)) },
	} {
		msg := newMessage("")
		set(msg)
		outbox.SetKey(msg, "K")
		require.NoError(t, pub.Publish("first", msg))
		metadata := within(t, "the message arrives", received)
		assert.Equal(t, msg.Metadata[delay.DelayedForKey], metadata[delay.DelayedForKey])
		h.exec(t, "delete from outbox where published_at is not null")
		copied := newMessage("copy")
		copied.Metadata = metadata
		second := newMessage("second")
		outbox.SetKey(second, "K")
		require.NoError(t, pub.Publish("copies", copied, second))
		assert.Zero(t, h.count(t, "select count(*) from outbox where topic = 'copies' and due_at is not null"))
		w.idle(t)
	}
}

// TestWatermillsRequeuer: a message of JetStream that fails twice returns to its topic each time through the outbox,
// delayed, with the same UUID. JetStream does not mistake it for a copy, and it is handled once.
func TestWatermillsRequeuer(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	broker := func(t *testing.T) message.Subscriber {
		sub, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{URL: url, Unmarshaler: &wmnats.NATSMarshaler{}}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		return sub
	}
	t.Run("the requeuer reads the outbox", func(t *testing.T) {
		t.Parallel()
		requeues(t, url, broker(t), func(h handle) message.Subscriber {
			sub, err := forwarder.NewSubscriber(h.db, forwarder.SubscriberConfig{
				Forwarder: forwarder.Config{PollInterval: 50 * time.Millisecond},
			}, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, sub.Close()) })
			return sub
		})
	})
	t.Run("the requeuer reads the broker", func(t *testing.T) {
		t.Parallel()
		requeues(t, url, broker(t), func(h handle) message.Subscriber {
			runForwarder(t, h, natsPublisher(t, url), quickConfig(), nil)
			return broker(t)
		})
	})
}

func requeues(t *testing.T, url string, orders message.Subscriber, aside func(h handle) message.Subscriber) {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	_, _, prefix := natsStream(t, url, nil)
	pub := natsPublisher(t, url)
	putAside, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	poison, err := wmiddleware.PoisonQueue(putAside, prefix+"requeue")
	require.NoError(t, err)
	delayOnError := wmiddleware.DelayOnError{
		InitialInterval: 1100 * time.Millisecond, MaxInterval: time.Hour, Multiplier: 1,
	}
	var retries []string
	router := startRouter(t, func(r *message.Router) {
		_, err := requeuer.NewRequeuer(requeuer.Config{
			Subscriber: aside(h), SubscribeTopic: prefix + "requeue", Publisher: pub, Router: r,
			GeneratePublishTopic: func(params requeuer.GeneratePublishTopicParams) (string, error) {
				return params.Message.Metadata.Get(wmiddleware.PoisonedTopicKey), nil
			},
		}, watermill.NopLogger{})
		require.NoError(t, err)
		handler := r.AddConsumerHandler("h", prefix+"orders", orders, func(msg *message.Message) error {
			if err := write(h, msg); err != nil {
				return err
			}
			if retries = append(retries, msg.Metadata.Get(requeuer.RetriesKey)); len(retries) < 3 {
				return errHandler
			}
			return nil
		})
		handler.AddMiddleware(poison, delayOnError.Middleware)
		handler.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
	})
	msg := newMessage("{}")
	require.NoError(t, pub.Publish(prefix+"orders", msg))
	h.reaches(t, 1, "the message is finally handled",
		"select count(*) from inbox where message_id = $1 and processed_at is not null", msg.UUID)
	require.NoError(t, router.Close())
	assert.Equal(t, []string{"", "1", "2"}, retries)
	assert.Equal(t, 1, effects(t, h, msg))
	// Watermill truncates the time to seconds, so on a busy machine it may already have passed.
	h.reaches(t, 2, "both messages are settled",
		`select count(*) from outbox where topic = $1 and published_at is not null`, prefix+"requeue")
	assert.Equal(t, 2, h.count(t, `select count(*) from outbox where topic = $1
		and published_at >= greatest(due_at, (metadata->>'_watermill_delayed_until')::timestamptz)`, prefix+"requeue"),
		"the outbox delayed it")
}

// TestRetryInsideOfPoisonQueue: the middleware that was added first is outermost, so a message goes to the poison queue
// once its retries are exhausted, and no attempt leaves a trace.
func TestRetryInsideOfPoisonQueue(t *testing.T) {
	h := onPgx(t)
	broker := gochannel.NewGoChannel(gochannel.Config{}, nil)
	t.Cleanup(func() { _ = broker.Close() })
	aside, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	poison, err := wmiddleware.PoisonQueue(aside, "poison")
	require.NoError(t, err)
	retry := wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Logger: watermill.NopLogger{}}
	var calls atomic.Int32
	router := startRouter(t, func(r *message.Router) {
		r.AddMiddleware(poison, retry.Middleware)
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)...)
		r.AddHandler("h", "orders", broker, "events", broker, func(msg *message.Message) ([]*message.Message, error) {
			calls.Add(1)
			if err := write(h, msg); err != nil {
				return nil, err
			}
			return nil, errHandler
		})
	})
	msg := newMessage("{}")
	require.NoError(t, broker.Publish("orders", msg))
	h.reaches(t, 1, "the message is in the poison queue",
		"select count(*) from outbox where topic = 'poison' and uuid = $1", msg.UUID)
	require.NoError(t, router.Close())
	assert.EqualValues(t, 3, calls.Load())
	assert.Zero(t, effects(t, h, msg))
}
