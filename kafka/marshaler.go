package kafka

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// marshaler sets the record key to the message's ordering key (docs/reference/identity.md), or to nil if that is empty.
type marshaler struct {
	// Marshaler creates the Kafka message. Default: watermill-kafka's DefaultMarshaler. A non-empty key that it sets is
	// kept, but is an error for a forwarder's message that was stored without a key, because such messages are sent in no
	// particular order.
	Marshaler wmkafka.Marshaler
}

var _ wmkafka.Marshaler = marshaler{}

// Marshal returns the wrapped marshaler's message with the ordering key as its key, or its error unchanged. Metadata
// "_watermill_message_uuid" and keys that begin with "%" are sent under an encoded name, see docs/start/kafka.md.
func (m marshaler) Marshal(topic string, msg *message.Message) (*sarama.ProducerMessage, error) {
	row := core.DeliveryOf(msg)
	key, err := core.KeyOf(msg)
	if err != nil {
		return nil, err
	}
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
		if row != nil && key == "" {
			return nil, fmt.Errorf("message %s: %w", msg.UUID, errUnorderedKey)
		}
		return out, nil
	}
	out.Key = nil
	if key != "" {
		out.Key = sarama.ByteEncoder(core.RecordKey(key))
	}
	return out, nil
}

// Cause: a Marshaler sets a record key.
// Cure: also remove the Marshaler's key until the waiting messages are published.
var errUnorderedKey = errors.New("kafka: the Marshaler sets a record key, but the outbox stored the message without " +
	"a key, so its order is not kept: set outbox.PublisherConfig.Key to the same key")

// carrying returns the name of the header for a metadata key. Kafka itself does not use outbox.MetadataHeaders.
func carrying(key string) string {
	switch {
	case key == outbox.MetadataHeaders:
		return ""
	case key == wmkafka.UUIDHeaderKey, header.IsMarked(key):
		return header.Encode(key)
	}
	return key
}

// Unmarshaler restores the names of metadata that the Publisher had to encode. It is safe for concurrent use if the
// wrapped one is.
type Unmarshaler struct {
	// Unmarshaler creates the Watermill message. Default: watermill-kafka's DefaultMarshaler.
	Unmarshaler wmkafka.Unmarshaler
}

var _ wmkafka.Unmarshaler = Unmarshaler{}

// Unmarshal returns the wrapped unmarshaler's message with its metadata decoded, or its error unchanged. The key of the
// record becomes the ordering key, metadata outbox.MetadataKey, so that it survives a dead letter or a queue.
// outbox.MetadataHeaders is removed: consumed messages cannot request headers.
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
	delete(out.Metadata, outbox.MetadataHeaders) // in any spelling
	if len(msg.Key) > 0 {
		if out.Metadata == nil {
			out.Metadata = message.Metadata{}
		}
		out.Metadata[outbox.MetadataKey] = core.KeyOfRecord(msg.Key)
	}
	return out, nil
}
