package nats

import (
	"net/url"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// SetHeader has JetStream get a header with a message, such as Nats-TTL, Nats-Rollup,
// Nats-Expected-Last-Subject-Sequence or a Nats-Msg-Id of your own. It is the way to command the server: metadata of
// the same name are data. The header is kept in the message's metadata under outbox.MetadataHeaders and sent in its
// place by a publisher with the Marshaler of this package; consumers find what the server leaves of it. Set again, it
// has the later value. A name that no header can have fails the message when it is published.
func SetHeader(msg *message.Message, name, value string) { header.Set(msg, name, value) }

// Unmarshaler gives consumers the metadata of a message under their own names again, which the Marshaler had to encode.
// It is safe for concurrent use if the wrapped one is.
type Unmarshaler struct {
	// Unmarshaler makes the message of the NATS message. Default: watermill-nats's NATSMarshaler.
	Unmarshaler wmnats.Unmarshaler
}

var _ wmnats.Unmarshaler = Unmarshaler{}

// Unmarshal returns the wrapped unmarshaler's message with its metadata decoded, or its error untouched. Headers that
// a message asks for under outbox.MetadataHeaders are left out: what was consumed commands nothing.
func (u Unmarshaler) Unmarshal(msg *natsgo.Msg) (*message.Message, error) {
	inner := u.Unmarshaler
	if inner == nil {
		inner = &wmnats.NATSMarshaler{}
	}
	out, err := inner.Unmarshal(msg)
	if err != nil {
		return nil, err
	}
	header.Decode(out.Metadata)
	if id, err := url.QueryUnescape(msg.Header.Get(uuidHeader)); err == nil && id != "" {
		out.UUID = id
		delete(out.Metadata, uuidHeader)
	}
	delete(out.Metadata, core.MetadataHeaders) // however it was spelt
	return out, nil
}
