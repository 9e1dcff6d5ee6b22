package kafka

import (
	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/cloudevents"
)

// CloudEvents sends and receives messages as CloudEvents 1.0 in binary mode. Use it as Marshaler of PublisherConfig and
// Unmarshaler of SubscriberConfig. ce_id is the UUID, ce_type the event type, ce_time the time when it occurred
// (outbox.SetEvent). Metadata are sent as by other marshalers; a metadata key "ce_subject" is the attribute subject.
// See docs/reference/identity.md.
type CloudEvents struct {
	// Source is ce_source, the service that publishes, as a URI or a path such as /orders; required to publish.
	Source string
	// ContentType is the media type of payloads; default "application/json". Metadata "content-type" takes precedence.
	ContentType string
}

var _ wmkafka.MarshalerUnmarshaler = CloudEvents{}

// Marshal returns outbox.ErrInvalidMessage for a message without an event type.
func (c CloudEvents) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	msg, err := cloudevents.Encode(msg, c.Source, c.ContentType, "ce_")
	if err != nil {
		return nil, err
	}
	return wmkafka.DefaultMarshaler{}.Marshal(topic, msg)
}

// Unmarshal sets the UUID to ce_id, and returns messages that are not CloudEvents as watermill-kafka does.
func (c CloudEvents) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	msg, err := wmkafka.DefaultMarshaler{}.Unmarshal(record)
	if err == nil {
		cloudevents.Decode(msg, "ce_")
	}
	return msg, err
}
