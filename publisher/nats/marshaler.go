package nats

import (
	"fmt"
	"strings"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Marshaler gives NATS messages a Nats-Msg-Id by which JetStream recognises a message that the outbox sends
// a second time. It is safe for concurrent use if the wrapped one is.
type Marshaler struct {
	// Marshaler makes the NATS message. Default: watermill-nats's NATSMarshaler. If it sets Nats-Msg-Id,
	// that stays.
	Marshaler wmnats.Marshaler
}

var _ wmnats.Marshaler = Marshaler{}

// Marshal returns the wrapped marshaler's message with Nats-Msg-Id set, or its error untouched. For a
// subject that nothing can be published to it returns an error that wraps nats.ErrBadSubject: the client lets
// wildcards and empty tokens pass. It returns outbox.ErrInvalidMessage for metadata "_watermill_message_uuid", the
// header in which the UUID travels, if its value is another.
func (m Marshaler) Marshal(topic string, msg *message.Message) (*natsgo.Msg, error) {
	if other, found := msg.Metadata[wmnats.WatermillUUIDHdr]; found && other != msg.UUID {
		return nil, fmt.Errorf("%w: metadata %s is the header of the UUID: leave it out", outbox.ErrInvalidMessage, wmnats.WatermillUUIDHdr)
	}
	inner := m.Marshaler
	if inner == nil {
		inner = &wmnats.NATSMarshaler{}
	}
	out, err := inner.Marshal(topic, msg)
	if err != nil {
		return nil, err
	}
	if !isLiteral(out.Subject) {
		return nil, fmt.Errorf("nats: publish to %q: %w", out.Subject, natsgo.ErrBadSubject)
	}
	if out.Header.Get(natsgo.MsgIdHdr) == "" {
		if out.Header == nil {
			out.Header = natsgo.Header{}
		}
		out.Header.Set(natsgo.MsgIdHdr, msgID(topic, msg))
	}
	return out, nil
}

// msgID separates by spaces, which neither a topic nor a generation can contain, so no two messages share one.
func msgID(topic string, msg *message.Message) string {
	if own := msg.Metadata.Get(natsgo.MsgIdHdr); own != "" {
		return own
	}
	id := msg.UUID + " " + topic
	if generation := msg.Metadata.Get(outbox.MetadataGeneration); generation != "" {
		id += " " + generation
	}
	if retries := msg.Metadata.Get(requeuer.RetriesKey); retries != "" { // Watermill's requeuer sends a message again under its UUID
		id += " retry " + retries
	}
	return id
}

func isLiteral(subject string) bool {
	if strings.ContainsAny(subject, " \t\r\n") {
		return false
	}
	for token := range strings.SplitSeq(subject, ".") {
		if token == "" || token == "*" || token == ">" {
			return false
		}
	}
	return true
}
