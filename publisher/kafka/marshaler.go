package kafka

import (
	"fmt"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Marshaler gives Kafka messages the outbox key as their key, and no key where there is none: an empty
// key becomes nil. It is safe for concurrent use if the wrapped one is.
type Marshaler struct {
	// Marshaler makes the Kafka message. Default: watermill-kafka's DefaultMarshaler. If it sets a
	// non-empty key, that key stays.
	Marshaler wmkafka.Marshaler
}

var _ wmkafka.Marshaler = Marshaler{}

// Marshal returns the wrapped marshaler's message with its key settled, or its error untouched. It returns
// outbox.ErrInvalidMessage for metadata "_watermill_message_uuid", the header in which the UUID travels.
func (m Marshaler) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	if _, found := msg.Metadata[wmkafka.UUIDHeaderKey]; found {
		return nil, fmt.Errorf("%w: metadata %s is the header of the UUID: leave it out", outbox.ErrInvalidMessage, wmkafka.UUIDHeaderKey)
	}
	inner := m.Marshaler
	if inner == nil {
		inner = wmkafka.DefaultMarshaler{}
	}
	out, err := inner.Marshal(topic, msg)
	if err != nil {
		return nil, err
	}
	if out.Key != nil && out.Key.Length() > 0 {
		return out, nil
	}
	out.Key = nil
	if key := msg.Metadata.Get(outbox.MetadataKey); key != "" {
		out.Key = sarama.StringEncoder(key)
	}
	return out, nil
}
