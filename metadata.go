package outbox

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// The limits of what the outbox stores beside the payload, in bytes.
const (
	MaxKeyBytes   = core.MaxKeyBytes   // 1024
	MaxUUIDBytes  = core.MaxUUIDBytes  // 255
	MaxTopicBytes = core.MaxTopicBytes // 1024
)

// Metadata that this module reads or writes. All but MetadataKey and the delays are conventions: they
// are passed on untouched and have the meaning that writers and readers agree on.
const (
	// MetadataKey is the ordering key. The forwarder sets it on what it publishes, so that a broker's
	// publisher can use it as partition key.
	MetadataKey = core.MetadataKey // "outbox_key"
	// MetadataGeneration counts how often a published message was put back to be sent again on purpose, or is the UUID of
	// the dead letter that was redriven; absent the first time. JetStream's deduplication must tell such a sending from a
	// retry.
	MetadataGeneration = core.MetadataGeneration // "outbox_generation"
	// MetadataRedriven counts how often the message was dead and was published again from its dead letter, by Redrive of
	// package admin; absent the first time.
	MetadataRedriven = core.MetadataRedriven // "outbox_redriven"
	// MetadataHeaders are headers that command the broker, as a JSON object of texts such as {"Nats-TTL":"1h"};
	// nats.SetHeader writes it. Metadata under the name of such a header is data and commands nothing. nats.Publisher
	// sends these headers in its place, kafka.Publisher, whose broker takes no commands, leaves it out, and other
	// publishers carry it as any metadata. A dead letter has it under another name, and the middlewares and Ingest take it
	// off what they consume: what came from outside commands nothing where a handler copies it.
	MetadataHeaders = core.MetadataHeaders // "outbox_headers"

	MetadataEventType     = "event_type"               // name of the event, such as "OrderPlaced"
	MetadataEventVersion  = "event_version"            // version of its layout, a positive integer
	MetadataAggregateType = core.MetadataAggregateType // "aggregate_type"; its kind, such as "order"
	MetadataAggregateID   = core.MetadataAggregateID   // "aggregate_id"; its identity
	MetadataOccurredAt    = "occurred_at"              // when it happened, RFC 3339 with nanoseconds
	MetadataCausationID   = "causation_id"             // UUID of the message whose handling caused this one

	// MetadataCorrelationID is Watermill's own: it is shared by all messages of one conversation.
	MetadataCorrelationID = "correlation_id"
)

// SetKey sets the ordering key of a message: those with the same key are published in order.
func SetKey(msg *message.Message, key string) {
	msg.Metadata.Set(MetadataKey, key)
}

// SetAggregate notes which aggregate a message is about. Unless a key is set afterwards or PublisherConfig.Key
// says otherwise, messages about the same aggregate are published in order. A key that the message has, as the copy of
// a consumed one may, is removed: it was that of another.
func SetAggregate(msg *message.Message, aggregateType, aggregateID string) {
	delete(msg.Metadata, MetadataKey)
	msg.Metadata.Set(MetadataAggregateType, aggregateType)
	msg.Metadata.Set(MetadataAggregateID, aggregateID)
}

// SetEvent notes the name of an event, the version of its layout, and when it happened. Versions count from 1: with one
// below, the message has none.
func SetEvent(msg *message.Message, eventType string, version int, occurredAt time.Time) {
	msg.Metadata.Set(MetadataEventType, eventType)
	if version < 1 {
		delete(msg.Metadata, MetadataEventVersion)
	} else {
		msg.Metadata.Set(MetadataEventVersion, strconv.Itoa(version))
	}
	msg.Metadata.Set(MetadataOccurredAt, occurredAt.UTC().Format(time.RFC3339Nano))
}

// SetDueAt keeps a message in the outbox until the given time on the database's clock. A delayed message takes its
// place among those of its key when it falls due and holds none of them up; it may be late by the forwarder's
// PollInterval. Messages delayed with Watermill's components/delay are understood as well; if they carry both a time
// and a duration, the time counts. A time that has passed delays nothing, so a copy of the metadata of a message that
// was delayed does not delay the copy.
func SetDueAt(msg *message.Message, at time.Time) {
	core.SetDueAt(msg, at)
}

// SetDelay is SetDueAt for a duration, counted on the database's clock from the insert. The forwarder adds the time at
// which that was over.
func SetDelay(msg *message.Message, d time.Duration) {
	core.SetDelay(msg, d)
}

// AggregateKey is the default of PublisherConfig.Key: aggregate type + "/" + aggregate id where both conventions are
// set, no key where neither is, and ErrInvalidMessage for half an aggregate, which would be without order in silence.
func AggregateKey(topic string, msg *message.Message) (string, error) {
	return core.AggregateKey(topic, msg)
}
