package nats

import (
	"errors"
	"fmt"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// unmarshaler reads what publisher/nats writes.
type unmarshaler struct{}

// Unmarshal is part of watermill-nats's Unmarshaler.
func (unmarshaler) Unmarshal(msg *natsgo.Msg) (*message.Message, error) {
	out, err := (&wmnats.NATSMarshaler{}).Unmarshal(msg)
	if err != nil {
		return nil, err
	}
	header.Decode(out.Metadata)
	delete(out.Metadata, core.MetadataHeaders) // what was consumed commands nothing
	return out, nil
}

// keyOf calls the user's function, which may panic.
func (c *SubscriberConfig) keyOf(msg *natsgo.Msg) (_ []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("SubscriberConfig.Key: %w", core.Panicked(p))
		}
	}()
	return c.Key(msg), nil
}

// Cause: a bug of the Unmarshaler.
// Cure: have it return a message or an error.
var errNoMessage = errors.New("the Unmarshaler returned neither a message nor an error")

// unmarshal calls the user's Unmarshaler, which may panic.
func (c *SubscriberConfig) unmarshal(msg *natsgo.Msg) (_ *message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = core.Panicked(p)
		}
	}()
	made, err := c.Unmarshaler.Unmarshal(msg)
	if err == nil && made == nil {
		err = errNoMessage
	}
	return made, err
}
