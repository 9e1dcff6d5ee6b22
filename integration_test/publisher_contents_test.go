package integration_test

import (
	"bytes"
	"context"
	"fmt"
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
)

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
		"no uuid": {"orders", bad(func(msg *message.Message) { msg.UUID = "" }), "watermill.NewUUID()"},
		"uuid too long": {"orders", bad(func(msg *message.Message) {
			msg.UUID = strings.Repeat("u", 256)
		}), "256 bytes"},
		"uuid not UTF-8":     {"orders", bad(func(msg *message.Message) { msg.UUID = "\xff" }), "UTF-8"},
		"nil message":        {"orders", []*message.Message{newMessage("good"), nil}, "message 1"},
		"empty topic":        {"", bad(func(*message.Message) {}), "topic is empty"},
		"topic with NUL":     {"a\x00b", bad(func(*message.Message) {}), "NUL"},
		"topic not UTF-8":    {"a\xffb", bad(func(*message.Message) {}), "UTF-8"},
		"topic too long":     {strings.Repeat("t", 1025), bad(func(*message.Message) {}), "1025 bytes"},
		"metadata key NUL":   {"orders", meta("a\x00b", "v"), "metadata"},
		"metadata value NUL": {"orders", meta("k", "a\x00b"), "metadata"},
		"metadata key UTF-8": {"orders", meta("a\xff", "v"), "metadata"},
		"metadata val UTF-8": {"orders", meta("k", "\xc3\x28"), "metadata"},
		"metadata too large": {"orders", meta("k", strings.Repeat("x", 1<<20)), "metadata has"},
		"payload too large": {"orders", bad(func(msg *message.Message) {
			msg.Payload = make([]byte, 1001)
		}), "MaxPayloadBytes is 1000"},
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
			from, to time.Duration // bounds of the delay after the insert; none = ready immediately, in its place
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
