package nats_test

import (
	"strings"
	"testing"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/nats"
)

// oneLine changes header values as nats.go does.
var oneLine = strings.NewReplacer("\r\n", " ", "\r", " ", "\n", " ")

// overTheWire returns a message as a subscriber receives it: nats.go writes headers as lines of text.
func overTheWire(t *testing.T, msg *natsgo.Msg) *natsgo.Msg {
	t.Helper()
	lines := "NATS/1.0\r\n"
	for name, values := range msg.Header {
		for _, value := range values {
			lines += name + ": " + oneLine.Replace(value) + "\r\n"
		}
	}
	got, err := natsgo.DecodeHeadersMsg([]byte(lines + "\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	return &natsgo.Msg{Subject: msg.Subject, Header: got, Data: msg.Data}
}

// TestValuesThatHeadersAlter: UUIDs, keys and metadata arrive unchanged, and different UUIDs have different
// Nats-Msg-Ids.
func TestValuesThatHeadersAlter(t *testing.T) {
	t.Parallel()
	ids := map[string]string{}
	for _, inner := range []wmnats.MarshalerUnmarshaler{&wmnats.NATSMarshaler{}, &wmnats.GobMarshaler{}} {
		for _, value := range []string{"u6\nx", "u6 x", " ", "u6%0Ax", "\ttab", "größe", "plain", "a+b", "a b",
			"u orders 2"} {
			msg := message.NewMessage(value, []byte("{}"))
			outbox.SetKey(msg, value)
			msg.Metadata.Set("note", value)
			sent, err := nats.Marshaler{Marshaler: inner}.Marshal("orders", msg)
			if err != nil {
				t.Fatal(err)
			}
			in := overTheWire(t, sent)
			got, err := nats.Unmarshaler{Unmarshaler: inner}.Unmarshal(in)
			if err != nil {
				t.Fatal(err)
			}
			if got.UUID != value || got.Metadata[outbox.MetadataKey] != value || got.Metadata["note"] != value ||
				len(got.Metadata) != 2 {
				t.Errorf("%q arrived as UUID %q with %q", value, got.UUID, got.Metadata)
			}
			id := in.Header.Get(natsgo.MsgIdHdr)
			if other, taken := ids[id]; taken && other != value {
				t.Errorf("%q and %q have the Nats-Msg-Id %q", value, other, id)
			}
			ids[id] = value
		}
	}
}

// TestKeyWithoutOutbox: a message published directly to NATS has the same key as through the outbox.
func TestKeyWithoutOutbox(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u", nil)
	outbox.SetAggregate(msg, "order", "1")
	sent, err := nats.Marshaler{}.Marshal("orders", msg)
	if err != nil || sent.Header.Get(outbox.MetadataKey) != "order/1" {
		t.Errorf("the key is %q: %v", sent.Header.Get(outbox.MetadataKey), err)
	}
}
