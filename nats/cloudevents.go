package nats

import (
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/cloudevents"
)

// CloudEvents sends and receives messages as CloudEvents 1.0 in binary mode. Use it as Marshaler of PublisherConfig and
// Unmarshaler of SubscriberConfig. ce-id is the UUID, ce-type the event type, ce-time the time when it occurred
// (outbox.SetEvent). Metadata are sent as by other marshalers; a metadata key "ce_subject" is the attribute subject.
// See docs/reference/identity.md.
type CloudEvents struct {
	// Source is ce-source, the service that publishes, as a URI or a path such as /orders; required to publish.
	Source string
	// ContentType is the media type of payloads; default "application/json". Metadata "content-type" takes precedence.
	ContentType string
}

var _ wmnats.MarshalerUnmarshaler = CloudEvents{}

// Marshal returns outbox.ErrInvalidMessage for a message without an event type.
func (c CloudEvents) Marshal(topic string, msg *message.Message) (*natsgo.Msg, error) {
	msg, err := cloudevents.Encode(msg, c.Source, c.ContentType, "ce-")
	if err != nil {
		return nil, err
	}
	return (&wmnats.NATSMarshaler{}).Marshal(topic, msg)
}

// Unmarshal sets the UUID to ce-id, and returns messages that are not CloudEvents as Unmarshaler does.
func (c CloudEvents) Unmarshal(in *natsgo.Msg) (*message.Message, error) {
	msg, err := Unmarshaler{}.Unmarshal(in)
	if err == nil {
		cloudevents.Decode(msg, "ce-")
	}
	return msg, err
}
