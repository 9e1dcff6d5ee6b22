package amqp

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// Marshaler renames metadata keys that RabbitMQ obeys as commands ("CC" and "BCC", which add routes), and restores the
// original name for consumers.
type Marshaler struct {
	// Marshaler creates the AMQP message. Default: watermill-amqp's DefaultMarshaler.
	Marshaler wmamqp.Marshaler
}

var _ wmamqp.Marshaler = Marshaler{}

// ourMarshaler wraps m unless it is a Marshaler already, which would encode each name twice.
func ourMarshaler(m wmamqp.Marshaler) Marshaler {
	switch m := m.(type) {
	case Marshaler:
		return m
	case *Marshaler:
		return *m
	}
	return Marshaler{m}
}

// Marshal returns outbox.ErrInvalidMessage for a metadata key, message id or other property over 255 bytes.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	out, err := m.inner().Marshal(header.Rename(msg, func(key string) string {
		switch {
		case key == outbox.MetadataHeaders:
			return ""
		case key == "CC", key == "BCC", key == wmamqp.DefaultMessageUUIDHeaderKey, header.IsMarked(key):
			return header.Encode(key)
		}
		return key
	}))
	if err != nil {
		return out, err
	}
	out.DeliveryMode = amqp091.Persistent
	if out.MessageId == "" {
		out.MessageId = msg.UUID
	}
	return out, errors.Join(
		checkLength("metadata key", slices.Collect(maps.Keys(out.Headers))...),
		checkLength("message id", out.MessageId),
		checkLength("content type", out.ContentType),
		checkLength("property", out.ContentEncoding, out.CorrelationId, out.ReplyTo, out.Expiration, out.Type, out.UserId,
			out.AppId),
	)
}

// checkLength returns an error for a string over 255 bytes, which AMQP's names, routing keys and most properties cannot
// have: amqp091-go closes the connection on it.
func checkLength(what string, values ...string) error {
	const limit = 255
	for _, s := range values {
		if len(s) > limit {
			return fmt.Errorf("%w: %s of %d bytes: AMQP allows %d", outbox.ErrInvalidMessage, what, len(s), limit)
		}
	}
	return nil
}

// Unmarshal returns the wrapped marshaler's message with the original names of its metadata. DefaultMarshaler fails on
// headers that are not strings, so it gets numbers, booleans, times and bytes as text, and tables, lists and nulls are
// removed.
func (m Marshaler) Unmarshal(in amqp091.Delivery) (*message.Message, error) {
	inner := m.inner()
	if _, ok := inner.(wmamqp.DefaultMarshaler); ok {
		in.Headers = asText(in.Headers)
	}
	msg, err := inner.Unmarshal(in)
	if err != nil {
		return nil, err
	}
	header.Decode(msg.Metadata)
	delete(msg.Metadata, outbox.MetadataHeaders)
	return msg, nil
}

func asText(headers amqp091.Table) amqp091.Table {
	texts := make(amqp091.Table, len(headers))
	for name, value := range headers {
		switch value := value.(type) {
		case nil, amqp091.Table, []any: // such as x-death, which RabbitMQ adds to dead letters
		case []byte:
			texts[name] = string(value)
		case time.Time:
			texts[name] = value.UTC().Format(time.RFC3339Nano)
		case amqp091.Decimal:
			texts[name] = fmt.Sprintf("%de-%d", value.Value, value.Scale)
		default:
			texts[name] = fmt.Sprint(value)
		}
	}
	return texts
}

func (m Marshaler) inner() wmamqp.Marshaler {
	if m.Marshaler == nil {
		return wmamqp.DefaultMarshaler{}
	}
	return m.Marshaler
}
