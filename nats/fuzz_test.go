package nats_test

import (
	"errors"
	"net/textproto"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/nats"
)

// FuzzMarshaler: a consumer reads exactly the published message, whatever its names and bytes, and metadata never
// become a header that the server obeys, nor end the headers.
func FuzzMarshaler(f *testing.F) {
	f.Add("orders", "u", "tenant", "acme", []byte("{}"))
	f.Add("a b", "", "", "", []byte(nil))
	f.Add("orders", "u", "Nats-TTL", "1s", []byte{0xff})
	f.Add("orders", "u", "nats-rollup", "all", []byte{})
	f.Add("orders", "u", "%Nats-TTL", "1s", []byte{})
	f.Add("orders", "u", outbox.MetadataHeaders, `{"Nats-TTL":"1s"}`, []byte{})
	f.Add("orders", "u", "Status", "503", []byte{})
	f.Add("orders", "u", "a\r\nNats-TTL", "1s", []byte{})
	f.Fuzz(func(t *testing.T, topic, uuid, name, value string, payload []byte) {
		msg := message.NewMessage(uuid, payload)
		msg.Metadata.Set(name, value)
		out, err := nats.Marshaler{}.Marshal(topic, msg)
		if err != nil {
			if !errors.Is(err, natsgo.ErrBadSubject) && !errors.Is(err, outbox.ErrInvalidMessage) {
				t.Errorf("%v", err)
			}
			return
		}
		for header := range out.Header {
			if strings.ContainsAny(header, "\r\n: ") || header == "" {
				t.Errorf("%q is not a header name", header)
			}
			if name != outbox.MetadataHeaders && header != natsgo.MsgIdHdr &&
				strings.HasPrefix(textproto.CanonicalMIMEHeaderKey(header), "Nats-") {
				t.Errorf("metadata %q is sent as the command %q", name, header)
			}
		}
		got, err := nats.Unmarshaler{}.Unmarshal(out)
		if err != nil {
			t.Fatal(err)
		}
		delete(got.Metadata, natsgo.MsgIdHdr) // set by the publisher
		want := msg.Copy()
		delete(want.Metadata, outbox.MetadataHeaders)
		if name == outbox.MetadataHeaders {
			got.Metadata = want.Metadata // SetHeader's header is there
		}
		if !got.Equals(want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
