package core

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// docs/reference/identity.md explains how messages are identified wherever they enter or leave the tables. Every
// publisher, subscriber, dead letter and table uses the functions of this file.

// KeyOf returns the ordering key of a message: metadata outbox_key if it is set, even if it is empty, which means no
// order; otherwise the key of its aggregate. It returns ErrInvalidMessage for half an aggregate.
func KeyOf(msg *message.Message) (string, error) {
	if key, set := msg.Metadata[MetadataKey]; set {
		return key, nil
	}
	return AggregateKey("", msg)
}

// ConsumedKey returns the ordering key of a message from outside, as KeyOf does, but "" for a key that no table can
// store.
func ConsumedKey(msg *message.Message) string {
	if key, err := KeyOf(msg); err == nil && len(key) <= MaxKeyBytes && text.Storable(key) {
		return key
	}
	return ""
}

// SetKey writes the key with which a message was stored into its metadata, so that KeyOf finds it outside the tables.
// It keeps an existing key, and writes an empty key only if KeyOf would otherwise find another one.
func SetKey(msg *message.Message, key string) {
	have, set := msg.Metadata[MetadataKey]
	if key == "" {
		if set {
			return
		}
		if kind := msg.Metadata[MetadataAggregateType]; kind == "" && msg.Metadata[MetadataAggregateID] == "" {
			return
		}
	}
	if have == "" {
		msg.Metadata[MetadataKey] = key
	}
}

// AggregateKey is outbox.AggregateKey.
func AggregateKey(_ string, msg *message.Message) (string, error) {
	kind, id := msg.Metadata[MetadataAggregateType], msg.Metadata[MetadataAggregateID]
	switch {
	case kind == "" && id == "":
		return "", nil
	case kind == "" || id == "":
		return "", fmt.Errorf("%w: it has half an aggregate (%s %q, %s %q), so no key and no order: set both, or "+
			"set metadata %s, which may be empty",
			ErrInvalidMessage, MetadataAggregateType, kind, MetadataAggregateID, id, MetadataKey)
	}
	return kind + "/" + id, nil
}

// encodedKey is the prefix of an ordering key that encodes a record key that no column can hold.
const encodedKey = "%"

// KeyOfRecord returns the ordering key for the key of a broker's record: its text, or if that is not UTF-8, contains a
// NUL or looks like an encoded key, "%" and the bytes in URL query encoding.
func KeyOfRecord(record []byte) string {
	if key := string(record); text.Storable(key) && string(RecordKey(key)) == key {
		return key
	}
	return encodedKey + url.QueryEscape(string(record))
}

// RecordKey returns the bytes from which KeyOfRecord made a key.
func RecordKey(key string) []byte {
	if rest, marked := strings.CutPrefix(key, encodedKey); marked {
		if record, err := url.QueryUnescape(rest); err == nil && KeyOfRecord([]byte(record)) == key {
			return []byte(record)
		}
	}
	return []byte(key)
}

// PayloadHash returns the SHA-256 of a payload. For null it is a single byte, which differs from the hash of every
// other payload, including the empty one.
func PayloadHash(payload []byte) []byte {
	if payload == nil {
		return []byte{0}
	}
	sum := sha256.Sum256(payload)
	return sum[:]
}

// IsPattern reports whether a topic is a NATS subject with wildcards, which can be subscribed to but not published to.
func IsPattern(topic string) bool {
	return slices.ContainsFunc(strings.Split(topic, "."), func(token string) bool { return token == "*" || token == ">" })
}

// Consumed is the place of a message in its broker: the topic, or the concrete subject if the subscription has a
// pattern, and the position there. No two messages of the broker have the same place.
type Consumed struct{ Topic, Position string }

type consumedKey struct{}

// WithConsumed records in the context of a message its place in its broker.
func WithConsumed(ctx context.Context, c Consumed) context.Context {
	return context.WithValue(ctx, consumedKey{}, c)
}

// ConsumedFrom returns the place of a message in its broker. With a subscriber of another module it is the topic of the
// subscription, without a position.
func ConsumedFrom(ctx context.Context) Consumed {
	c, _ := ctx.Value(consumedKey{}).(Consumed)
	if c.Topic == "" {
		c.Topic = message.SubscribeTopicFromCtx(ctx)
	}
	return c
}
