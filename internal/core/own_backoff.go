package core

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

type ownBackoffKey struct{}

// ownBackoff is the sign that a subscriber puts into the context of a message which it holds back itself after a nack,
// with the rest of its key, while others have its place. In-process Pub/Subs pass contexts on, so it counts only with
// the message that it was made for.
type ownBackoff struct {
	msg   *message.Message
	later func(wait time.Duration, err error)
}

// WithOwnBackoff signs msg, whose context is to be the one returned. Later is told, before the nack, why the handler
// failed, and how long the message is to be held back if the handler has asked for that, else 0; it must be safe for
// concurrent use.
func WithOwnBackoff(
	ctx context.Context, msg *message.Message, later func(wait time.Duration, err error),
) context.Context {
	return context.WithValue(ctx, ownBackoffKey{}, &ownBackoff{msg, later})
}

// OwnBackoff returns what is to be told why this very message, and not a copy, failed, and how long it should be held
// back; nil if whoever delivered it does not wait after a nack, or not for this message alone.
func OwnBackoff(msg *message.Message) (later func(wait time.Duration, err error)) {
	if s, _ := msg.Context().Value(ownBackoffKey{}).(*ownBackoff); s != nil && s.msg == msg {
		return s.later
	}
	return nil
}
