package nats

import (
	"net/url"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// SetHeader sets a header that JetStream obeys, such as Nats-TTL, Nats-Rollup, Nats-Expected-Last-Subject-Sequence or
// your own Nats-Msg-Id. Metadata with the same name are only data. The header is stored in metadata
// outbox.MetadataHeaders, which the Publisher sends as headers. A later call overwrites the value. An invalid name
// fails the message when it is published.
func SetHeader(msg *message.Message, name, value string) { header.Set(msg, name, value) }

// Unmarshaler restores the names of metadata that the Publisher had to encode. It is safe for concurrent use if the
// wrapped one is.
type Unmarshaler struct {
	// Unmarshaler creates the Watermill message. Default: watermill-nats's NATSMarshaler.
	Unmarshaler wmnats.Unmarshaler
}

var _ wmnats.Unmarshaler = Unmarshaler{}

// Unmarshal returns the wrapped unmarshaler's message with its metadata decoded, or its error unchanged.
// outbox.MetadataHeaders is removed: consumed messages cannot request headers.
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
	delete(out.Metadata, core.MetadataHeaders) // in any spelling
	return out, nil
}
