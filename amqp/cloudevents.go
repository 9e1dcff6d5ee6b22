package amqp

import (
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/watermill-outbox/internal/cloudevents"
)

// CloudEvents sends and receives messages as CloudEvents 1.0 in binary mode. Use it as the Marshaler of Config. The
// headers are those of the Go SDK, which RabbitMQ gives AMQP 1.0 clients as application properties: cloudEvents:id is
// the UUID, cloudEvents:type the event type, cloudEvents:time the time when it occurred (outbox.SetEvent). Metadata are
// sent as by other marshalers; a metadata key "ce_subject" is the attribute subject. See docs/reference/identity.md.
type CloudEvents struct {
	// Source is the service that publishes, as a URI or a path such as /orders; required to publish.
	Source string
	// ContentType is the media type of payloads; default "application/json". Metadata "content-type" takes precedence.
	ContentType string
}

var _ wmamqp.Marshaler = CloudEvents{}

// Marshal returns outbox.ErrInvalidMessage for a message without an event type.
func (c CloudEvents) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	msg, err := cloudevents.Encode(msg, c.Source, c.ContentType, "cloudEvents:", "cloudEvents_")
	if err != nil {
		return amqp091.Publishing{}, err
	}
	out, err := wmamqp.DefaultMarshaler{}.Marshal(msg)
	out.ContentType = msg.Metadata[cloudevents.ContentType]
	delete(out.Headers, cloudevents.ContentType)
	return out, err
}

// Unmarshal sets the UUID to the event's id, and returns messages that are not CloudEvents as Marshaler does.
func (c CloudEvents) Unmarshal(in amqp091.Delivery) (*message.Message, error) {
	msg, err := Marshaler{}.Unmarshal(in)
	if err != nil {
		return nil, err
	}
	if in.ContentType != "" {
		msg.Metadata[cloudevents.ContentType] = in.ContentType
	}
	cloudevents.Decode(msg, "cloudEvents:", "cloudEvents_")
	return msg, nil
}
