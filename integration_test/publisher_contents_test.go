package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

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
