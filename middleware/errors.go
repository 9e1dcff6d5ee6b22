package middleware

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	// ErrPoison marks a message that no redelivery can help. A handler returns Poison(err), or anything
	// that wraps ErrPoison; Inbox returns it for a message without a usable key. Outcomes then puts the
	// message aside.
	ErrPoison = errors.New("poison message")

	// ErrAlreadyProcessed is for handlers that find out by themselves that a message was handled before.
	// The transaction is rolled back and Outcomes acks.
	ErrAlreadyProcessed = errors.New("already processed")

	// ErrUncaptured is returned by Inbox if messages came out of the handler that no Outbox captured.
	// Nothing of the attempt was committed.
	ErrUncaptured = errors.New("the handler returned messages that would be published after the commit, " +
		"where a failure could not be repeated: add middleware.Outbox inside of middleware.Inbox")

	// ErrNacked is returned by Tx if the handler nacked the message and returned nil. The transaction was
	// rolled back.
	ErrNacked = errors.New("the handler nacked the message")
)

// Poison marks err so that Outcomes puts the message aside instead of having it redelivered. It returns
// nil if err is nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPoison, err)
}

// refuse is what a constructor returns that cannot return an error: a middleware that fails every message.
func refuse(name string, err error) message.HandlerMiddleware {
	err = fmt.Errorf("middleware.%s: %w", name, err)
	return func(message.HandlerFunc) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) { return nil, err }
	}
}
