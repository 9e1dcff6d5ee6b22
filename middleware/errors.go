package middleware

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

var (
	// errUncaptured is returned by Inbox if the handler returned messages and there is no Outbox.
	// Nothing of the attempt was committed.
	errUncaptured = errors.New("the handler returned messages that would be published after the commit, where a " +
		"failure could not be retried: add middleware.Outbox inside middleware.Inbox")

	// errReturned is returned by Outbox if a handler returned the message that forwarder.Subscriber delivered to it, by
	// its UUID. Written to the outbox again, the message could loop forever.
	errReturned = errors.New("the handler returned the message that was delivered to it from the outbox: " +
		"return one with a new UUID; a forwarder.Forwarder passes messages on to a broker")
)

// wiringError is an error with advice on middlewares that are missing or in the wrong place. It may wrap a sentinel.
type wiringError struct {
	text     string
	sentinel error
}

func (e *wiringError) Error() string { return e.text }
func (e *wiringError) Unwrap() error { return e.sentinel }

// miswired reports whether an error can be fixed only by a change of the program.
func miswired(err error) bool {
	var wiring *wiringError
	return errors.As(err, &wiring) || errors.Is(err, errUncaptured) || errors.Is(err, errReturned) ||
		errors.Is(err, outbox.ErrTxKind) || errors.Is(err, outbox.ErrOtherDB)
}

// checkTx returns nil if ctx carries a transaction of db, or else an error with advice.
func checkTx(err error, name string) error {
	switch {
	case errors.Is(err, outbox.ErrNoTx):
		return &wiringError{
			"middleware." + name + " has no transaction around it: add middleware.Tx before middleware." + name +
				", as Router.AddMiddleware makes the first the outermost, or use middleware.Stack, which has all in " +
				"order",
			outbox.ErrNoTx,
		}
	case errors.Is(err, outbox.ErrOtherDB):
		return &wiringError{
			"middleware." + name + " and the transaction around it were made with different *outbox.DB handles: " +
				"make one handle for each pool and pass it to all parts", outbox.ErrOtherDB,
		}
	}
	return err
}

// unsafeWithin returns an error about a harmful middleware, or nil if name is empty.
func unsafeWithin(name string) error {
	if name == "" {
		return nil
	}
	return &wiringError{
		text: "Watermill's " + name + " is inside middleware.Tx, where it hides from the transaction that the " +
			"handler failed, or calls it twice: add it before middleware.Stack, so that it is outside (a handler's " +
			"own AddMiddleware lands inside the Router's); middleware.Inbox is the deduplicator",
	}
}

type handleFunc func(next message.HandlerFunc, msg *message.Message) ([]*message.Message, error)

// around makes a middleware from handle, and keeps nil handlers and nil messages from it. If the middlewares are
// combined wrongly and there is no ErrorHandler that would wait before a nack, it waits itself.
func around(name string, handle handleFunc) message.HandlerMiddleware {
	var throttle core.Throttle
	return func(next message.HandlerFunc) message.HandlerFunc {
		var unsafe error
		if name != "ErrorHandler" && name != "Tx" { // what surrounds Tx does no harm, and Tx checks for itself
			unsafe = unsafeWithin(core.UnsafeFunc(next))
		}
		return func(msg *message.Message) ([]*message.Message, error) {
			switch {
			case next == nil:
				return nil, fmt.Errorf("middleware.%s: the handler is nil", name)
			case msg == nil:
				return nil, fmt.Errorf("middleware.%s: the message is nil", name)
			}
			ctx, outermost := msg.Context(), currentHandling(msg) == nil
			var produced []*message.Message
			err := unsafe
			if unsafe == nil {
				produced, err = handle(next, msg)
			}
			if outermost && name != "ErrorHandler" && miswired(err) {
				throttle.Pause(ctx)
			}
			return produced, err
		}
	}
}
