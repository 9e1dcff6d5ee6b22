package core

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

type ownBackoffKey struct{}

// ownBackoff marks the context of a message whose subscriber waits after a nack: it delays the message and the rest of
// its key, and frees its slot for others. In-process Pub/Subs pass contexts on, so the mark counts only with the
// message for which it was set.
type ownBackoff struct {
	msg   *message.Message
	later func(wait time.Duration, err error)
}

// WithOwnBackoff marks msg. The caller must set the returned context on msg. Before the nack, later is called with the
// error of the handler and the wait that it requested, or 0; later must be safe for concurrent use.
func WithOwnBackoff(
	ctx context.Context, msg *message.Message, later func(wait time.Duration, err error),
) context.Context {
	return context.WithValue(ctx, ownBackoffKey{}, &ownBackoff{msg, later})
}

// OwnBackoff returns the function to call with the error of this message and the wait before its retry; nil for a copy,
// or if its subscriber does not wait after a nack of this message alone.
func OwnBackoff(msg *message.Message) (later func(wait time.Duration, err error)) {
	if s, _ := msg.Context().Value(ownBackoffKey{}).(*ownBackoff); s != nil && s.msg == msg {
		return s.later
	}
	return nil
}
