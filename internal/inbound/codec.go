package inbound

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Codec is user code for the records of a broker. Its methods recover panics of that code.
type Codec[R any] struct {
	Key       func(R) []byte
	Unmarshal func(R) (*message.Message, error)
}

// KeyOf calls Key.
func (c Codec[R]) KeyOf(rec R) (_ []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("SubscriberConfig.Key: %w", core.Panicked(p))
		}
	}()
	return c.Key(rec), nil
}

// Cause: a bug of the Unmarshaler.
// Cure: return a message or an error.
var errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")

// message calls Unmarshal.
func (c Codec[R]) message(rec R) (_ *message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = core.Panicked(p)
		}
	}()
	made, err := c.Unmarshal(rec)
	if err == nil && made == nil {
		err = errNoMessage
	}
	return made, err
}
