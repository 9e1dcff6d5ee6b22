package kafka

import (
	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// Marshaler gives Kafka messages the outbox key as their key, and no key where there is none: an empty
// key becomes nil. It is safe for concurrent use if the wrapped one is.
type Marshaler struct {
	// Marshaler makes the Kafka message. Default: watermill-kafka's DefaultMarshaler. If it sets a
	// non-empty key, that key stays.
	Marshaler wmkafka.Marshaler
}

var _ wmkafka.Marshaler = Marshaler{}

// Marshal returns the wrapped marshaler's message with its key settled, or its error untouched. Metadata
// "_watermill_message_uuid", the header in which the UUID travels, and such as begin with "%" are sent under an encoded
// name, see the package comment.
func (m Marshaler) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	msg = header.Rename(msg, carrying)
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

// carrying is the name of the header that carries a metadata key. Of the headers of outbox.MetadataHeaders Kafka knows
// none.
func carrying(key string) string {
	switch {
	case key == outbox.MetadataHeaders:
		return ""
	case key == wmkafka.UUIDHeaderKey, header.IsMarked(key):
		return header.Encode(key)
	}
	return key
}

// Unmarshaler gives consumers the metadata of a message under their own names again, which the Marshaler had to encode.
// It is safe for concurrent use if the wrapped one is.
type Unmarshaler struct {
	// Unmarshaler makes the message of the Kafka message. Default: watermill-kafka's DefaultMarshaler.
	Unmarshaler wmkafka.Unmarshaler
}

var _ wmkafka.Unmarshaler = Unmarshaler{}

// Unmarshal returns the wrapped unmarshaler's message with its metadata decoded, or its error untouched. Headers that a
// message asks for under outbox.MetadataHeaders are left out: what was consumed commands nothing.
func (u Unmarshaler) Unmarshal(msg *sarama.ConsumerMessage) (*message.Message, error) {
	inner := u.Unmarshaler
	if inner == nil {
		inner = wmkafka.DefaultMarshaler{}
	}
	out, err := inner.Unmarshal(msg)
	if err != nil {
		return nil, err
	}
	header.Decode(out.Metadata)
	delete(out.Metadata, outbox.MetadataHeaders) // however it was spelt
	return out, nil
}
