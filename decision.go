package outbox

import (
	"errors"
	"fmt"
)

// Decision says what becomes of a message whose handler returned an error. Values may be added.
type Decision int

const (
	Nack       Decision = iota // have it again; the default
	DeadLetter                 // put it aside
	Ack                        // it is done: the error says that the work was done before
)

var (
	// ErrPoison marks a message that no redelivery can help. A handler returns Poison(err), or anything that wraps
	// ErrPoison; middleware.Inbox returns it for a message without a usable key. The message is put aside.
	ErrPoison = errors.New("poison message")

	// ErrAlreadyProcessed is for handlers that find out by themselves that a message was handled before. The
	// transaction is rolled back and the message acked.
	ErrAlreadyProcessed = errors.New("already processed")
)

// Poison marks err so that the message is put aside instead of being delivered again. It returns nil if err is nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPoison, err)
}
