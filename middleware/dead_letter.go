package middleware

import (
	"context"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// Metadata of a dead letter, under the names that Watermill's PoisonQueue uses.
const (
	MetadataReason     = "reason_poisoned"     // text of the error, up to 1 KiB
	MetadataTopic      = "topic_poisoned"      // topic that the message was consumed from
	MetadataHandler    = "handler_poisoned"    // name of the handler in its Router
	MetadataSubscriber = "subscriber_poisoned" // name of the subscriber's type
)

const maxErrorBytes = 1024

// letterKey is the default key, unless it is one that the outbox refuses.
func letterKey(topic string, msg *message.Message) string {
	if key := outbox.AggregateKey(topic, msg); len(key) <= outbox.MaxKeyBytes {
		return key
	}
	return ""
}

// bury marks the message dead and publishes its dead letter, both or neither. It returns false if a copy was
// processed meanwhile, or is dead already: then it does nothing.
func (o *outcomes) bury(ctx context.Context, msg *message.Message, c *claim, cause error) (buried bool, err error) {
	err = outbox.InTx(ctx, o.db, func(ctx context.Context) error {
		buried = c == nil
		if c != nil {
			q, err := o.db.TxQuerier(ctx)
			if err != nil {
				return err
			}
			err = schema.Collect(ctx, q, func(schema.Rows) error { buried = true; return nil },
				c.tables.Render(schema.BuryInbox), c.consumer, c.key, errorText(cause))
			if err != nil || !buried {
				return err
			}
		}
		return o.letters.Capture(ctx, o.cfg.DeadLetterTopic, deadLetter(ctx, msg, cause))
	})
	return buried, err
}

// deadLetter is a copy of msg that the outbox can store, whatever is wrong with the original: metadata is made valid,
// a UUID that is missing or unusable is replaced, and a delay, which was that of the original, removed.
func deadLetter(ctx context.Context, msg *message.Message, cause error) *message.Message {
	letter := message.NewMessage(msg.UUID, msg.Payload)
	if msg.UUID == "" || len(msg.UUID) > outbox.MaxUUIDBytes || !schema.Storable(msg.UUID) {
		letter.UUID = watermill.NewUUID()
	}
	for k, v := range msg.Metadata {
		letter.Metadata.Set(valid(k), valid(v))
	}
	delete(letter.Metadata, delay.DelayedUntilKey)
	delete(letter.Metadata, delay.DelayedForKey)
	if len(letter.Metadata.Get(outbox.MetadataKey)) > outbox.MaxKeyBytes {
		delete(letter.Metadata, outbox.MetadataKey)
	}
	letter.Metadata.Set(MetadataReason, errorText(cause))
	letter.Metadata.Set(MetadataTopic, message.SubscribeTopicFromCtx(ctx))
	letter.Metadata.Set(MetadataHandler, message.HandlerNameFromCtx(ctx))
	letter.Metadata.Set(MetadataSubscriber, message.SubscriberNameFromCtx(ctx))
	return letter
}

// errorText is what of an error is stored.
func errorText(err error) string {
	text := valid(err.Error())
	if len(text) > maxErrorBytes {
		text = strings.ToValidUTF8(text[:maxErrorBytes-len("…")], "") + "…"
	}
	return text
}

// valid replaces what Postgres text cannot hold.
func valid(s string) string {
	if schema.Storable(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
