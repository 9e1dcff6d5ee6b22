package middleware

import (
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Except applies a middleware to all handlers of a Router but those named.
func Except(mw message.HandlerMiddleware, handlers ...string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		wrapped := mw(next)
		return func(msg *message.Message) ([]*message.Message, error) {
			if slices.Contains(handlers, message.HandlerNameFromCtx(msg.Context())) {
				return next(msg)
			}
			return wrapped(msg)
		}
	}
}
