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

// Which message is which, wherever one enters or leaves the tables: docs/reference/identity.md. Every publisher,
// subscriber, dead letter and table uses the functions of this file.

// KeyOf returns the ordering key of a message: metadata outbox_key where it is set, also if it is empty, which means no
// order; else the key of its aggregate. It returns ErrInvalidMessage for half an aggregate.
func KeyOf(msg *message.Message) (string, error) {
	if key, set := msg.Metadata[MetadataKey]; set {
		return key, nil
	}
	return AggregateKey("", msg)
}

// ConsumedKey is KeyOf for a message that came from outside: a key that no table can store counts as none.
func ConsumedKey(msg *message.Message) string {
	if key, err := KeyOf(msg); err == nil && len(key) <= MaxKeyBytes && text.Storable(key) {
		return key
	}
	return ""
}

// SetKey writes the key with which a message was stored into its metadata, so that KeyOf finds it outside of the
// tables. It leaves a key that the metadata have, and writes an empty one only where KeyOf would find another.
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
		return "", fmt.Errorf("%w: it has half an aggregate, %s %q and %s %q, and so no key and no order: set both, "+
			"or metadata %s, which may be empty",
			ErrInvalidMessage, MetadataAggregateType, kind, MetadataAggregateID, id, MetadataKey)
	}
	return kind + "/" + id, nil
}

// encodedKey begins a key that stands for the bytes of a record's key which no column can hold.
const encodedKey = "%"

// KeyOfRecord returns the ordering key for the key of a broker's record: its text, or, if it is not UTF-8, holds a NUL
// or would be taken for an encoded one, "%" and the bytes encoded as in the query of a URL.
func KeyOfRecord(record []byte) string {
	if key := string(record); text.Storable(key) && string(RecordKey(key)) == key {
		return key
	}
	return encodedKey + url.QueryEscape(string(record))
}

// RecordKey returns the bytes that KeyOfRecord made a key of.
func RecordKey(key string) []byte {
	if rest, marked := strings.CutPrefix(key, encodedKey); marked {
		if record, err := url.QueryUnescape(rest); err == nil && KeyOfRecord([]byte(record)) == key {
			return []byte(record)
		}
	}
	return []byte(key)
}

// PayloadHash is the SHA-256 of a payload. That of null has one byte: no other payload has the same, not the empty one.
func PayloadHash(payload []byte) []byte {
	if payload == nil {
		return []byte{0}
	}
	sum := sha256.Sum256(payload)
	return sum[:]
}

// IsPattern reports whether a topic is a subject with wildcards, as NATS has them: messages come from it, and none can
// be published to it.
func IsPattern(topic string) bool {
	return slices.ContainsFunc(strings.Split(topic, "."), func(token string) bool { return token == "*" || token == ">" })
}

// Consumed is where a broker had a message: the topic or subject itself, where the subscription has a pattern, and the
// position in it, which no two messages of the broker share.
type Consumed struct{ Topic, Position string }

type consumedKey struct{}

// WithConsumed notes in the context of a message where its broker had it.
func WithConsumed(ctx context.Context, c Consumed) context.Context {
	return context.WithValue(ctx, consumedKey{}, c)
}

// ConsumedFrom returns where the broker of a message had it. A subscriber of another package leaves the topic of the
// subscription, and no position.
func ConsumedFrom(ctx context.Context) Consumed {
	c, _ := ctx.Value(consumedKey{}).(Consumed)
	if c.Topic == "" {
		c.Topic = message.SubscribeTopicFromCtx(ctx)
	}
	return c
}
