package envelope

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// FuzzEnvelopes: a message is unchanged after wrapping and unwrapping, and an invalid envelope is an error.
func FuzzEnvelopes(f *testing.F) {
	f.Add("orders", "u", "k", "v", []byte(`{}`))
	f.Add("", "", "", "", []byte(nil))
	f.Add("größe", "\x00", "<>&\u2028", `"\`, []byte(`{"destination_topic":"a","uuid":"u","payload":"","metadata":{}}`))
	f.Fuzz(func(t *testing.T, topic, uuid, key, value string, payload []byte) {
		e, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, msg, err := e.Open(message.NewMessage("e", payload)); err == nil && (msg == nil || msg.Metadata == nil) {
			t.Errorf("%q is the envelope of nothing", payload)
		}
		if !text.Storable(topic + uuid + key + value) {
			return
		}
		msg := message.NewMessage(uuid, payload)
		msg.Metadata.Set(key, value)
		sealed, err := e.Seal(topic, msg)
		if err != nil {
			return
		}
		to, got, err := e.Open(sealed)
		if err != nil {
			return // Watermill's forwarder would not publish it either
		}
		if to != topic || !got.Equals(msg) {
			t.Errorf("%q %+v came out as %q %+v", topic, msg, to, got)
		}
	})
}
