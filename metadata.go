package outbox

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Metadata that this module reads or writes. All but MetadataKey and the delays are conventions: they
// are passed on untouched and have the meaning that writers and readers agree on.
const (
	// MetadataKey is the ordering key, of at most 1024 bytes. The forwarder sets it on published messages, so that a
	// broker's publisher can use it as partition key.
	MetadataKey = core.MetadataKey // "outbox_key"
	// MetadataGeneration counts requeues and replays, after a redrive behind the UUID of the dead letter and a dot; absent
	// the first time. It lets JetStream's deduplication distinguish a replay from a retry.
	MetadataGeneration = core.MetadataGeneration // "outbox_generation"
	// MetadataHeaders are headers that command the broker, as a JSON object of strings such as {"Nats-TTL":"1h"};
	// nats.SetHeader writes it. nats.Publisher sends these headers instead of it, kafka.Publisher drops it, and other
	// publishers send it as metadata. The middlewares and Ingest remove it from consumed messages, so that a copied
	// message commands nothing.
	MetadataHeaders = core.MetadataHeaders // "outbox_headers"

	MetadataEventType     = "event_type"               // name of the event, such as "OrderPlaced"
	MetadataEventVersion  = "event_version"            // version of its layout, a positive integer
	MetadataAggregateType = core.MetadataAggregateType // "aggregate_type"; its kind, such as "order"
	MetadataAggregateID   = core.MetadataAggregateID   // "aggregate_id"; its identity
	MetadataOccurredAt    = "occurred_at"              // when it happened, RFC 3339 with nanoseconds
	MetadataCausationID   = "causation_id"             // UUID of the message whose handling caused this one
)

// SetKey sets the ordering key: messages with the same key are published in order.
func SetKey(msg *message.Message, key string) {
	msg.Metadata.Set(MetadataKey, key)
}

// SetAggregate sets the aggregate that a message is about. Unless a key is set afterwards or by PublisherConfig.Key,
// messages about the same aggregate are published in order. It removes a key that a copied message brought along.
func SetAggregate(msg *message.Message, aggregateType, aggregateID string) {
	delete(msg.Metadata, MetadataKey)
	msg.Metadata.Set(MetadataAggregateType, aggregateType)
	msg.Metadata.Set(MetadataAggregateID, aggregateID)
}

// SetEvent sets the name of an event, the version of its layout, and when it happened. Versions count from 1; a lower
// version is not stored.
func SetEvent(msg *message.Message, eventType string, version int, occurredAt time.Time) {
	msg.Metadata.Set(MetadataEventType, eventType)
	if version < 1 {
		delete(msg.Metadata, MetadataEventVersion)
	} else {
		msg.Metadata.Set(MetadataEventVersion, strconv.Itoa(version))
	}
	msg.Metadata.Set(MetadataOccurredAt, occurredAt.UTC().Format(time.RFC3339Nano))
}

// SetDueAt keeps a message in the outbox until the given time on the database's clock. It may be late by the
// forwarder's PollInterval. A delayed message follows those of its key that were committed before it was written; no
// other waits for it. Messages delayed by Watermill's components/delay work too; a time takes precedence over a
// duration. A past time delays nothing, so a copy of delayed metadata is not delayed.
func SetDueAt(msg *message.Message, at time.Time) {
	core.SetDueAt(msg, at)
}

// SetDelay keeps a message in the outbox for a duration after its insert. Otherwise it is like SetDueAt.
func SetDelay(msg *message.Message, d time.Duration) {
	core.SetDelay(msg, d)
}

// AggregateKey is the default of PublisherConfig.Key: aggregate type + "/" + aggregate id, or no key if neither is set.
// If only one is set it returns ErrInvalidMessage, because the message would silently have no order.
func AggregateKey(topic string, msg *message.Message) (string, error) {
	return core.AggregateKey(topic, msg)
}
