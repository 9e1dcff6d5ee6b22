package nats

import (
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
