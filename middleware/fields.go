package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// fieldsOf returns the log fields that identify a message: its handler, its source and its UUID. Without a UUID they
// include the consumer.
func fieldsOf(ctx context.Context, msg *message.Message) watermill.LogFields {
	fields := watermill.LogFields{
		"handler_name": message.HandlerNameFromCtx(ctx), "topic": message.SubscribeTopicFromCtx(ctx),
	}
	if msg.UUID != "" {
		fields["message_uuid"] = msg.UUID
	} else {
		fields["subscriber_name"] = message.SubscriberNameFromCtx(ctx)
	}
	return fields
}
