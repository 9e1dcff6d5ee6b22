package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// fieldsOf are what a log line says of a message: which handler it is for, whence it came, and its UUID. Of one
// without a UUID it says what consumed it.
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
