package nats

import (
	"fmt"
	"net/textproto"
	"net/url"
	"strings"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// marshaler sets a Nats-Msg-Id by which JetStream recognises a repeated message, and prevents metadata from commanding
// the server.
type marshaler struct {
	// Marshaler creates the NATS message. Default: watermill-nats's NATSMarshaler. Headers that it sets itself are kept,
	// such as Nats-TTL or Nats-Msg-Id, to which the generation is added. Headers that it copies from metadata with the
	// same name and value are data.
	Marshaler wmnats.Marshaler

	quoted func(key string) // called for metadata that would have commanded the server; may be nil
}

var _ wmnats.Marshaler = marshaler{}

// Marshal returns the wrapped marshaler's message with Nats-Msg-Id and the headers of SetHeader, or its error
// unchanged. Metadata whose key is an invalid header name, or a header that JetStream or its clients obey, are sent
// under an encoded name, see docs/start/nats.md. It returns an error that wraps nats.ErrBadSubject for a subject with
// wildcards or empty tokens, and outbox.ErrInvalidMessage if the headers of SetHeader cannot be read or sent.
func (m marshaler) Marshal(topic string, msg *message.Message) (*natsgo.Msg, error) {
	key, err := core.KeyOf(msg)
	if err != nil {
		return nil, err
	}
	requested, msg, err := header.Take(msg)
	if err != nil {
		return nil, err
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
	if out.Header == nil {
		out.Header = natsgo.Header{}
	}
	m.quote(out, msg)
	for name, value := range requested {
		if !isHeader(name) || name == wmnats.WatermillUUIDHdr {
			return nil, fmt.Errorf("%w: %q of nats.SetHeader cannot be a header", outbox.ErrInvalidMessage, name)
		}
		out.Header.Set(name, value)
	}
	if key != "" && !carriesKey(out.Header) { // a Marshaler may have changed its spelling
		name, value := headerOf(outbox.MetadataKey, key)
		out.Header.Set(name, value)
	}
	if id := out.Header.Get(wmnats.WatermillUUIDHdr); id == msg.UUID && !travels(id) {
		out.Header.Set(wmnats.WatermillUUIDHdr, escapeUUID(id))
		out.Header.Set(uuidHeader, url.QueryEscape(id))
	}
	out.Header.Set(natsgo.MsgIdHdr, msgID(topic, msg, out.Header.Get(natsgo.MsgIdHdr)))
	return out, nil
}

// uuidHeader holds a UUID that watermill-nats's header would alter. Metadata cannot have this name: see header.Encode.
const uuidHeader = "%*uuid"

// travels reports whether a header keeps a value unchanged: nats.go trims it and replaces line breaks.
func travels(value string) bool {
	return !strings.ContainsAny(value, "\r\n") && textproto.TrimString(value) == value
}

// headerOf returns the header for a metadata entry whose key is a valid name.
func headerOf(key, value string) (string, string) {
	if travels(value) {
		return key, value
	}
	return header.EncodeValue(key, value)
}

// keyIn returns the ordering key in the headers of a message.
func keyIn(h natsgo.Header) string {
	if key, err := url.QueryUnescape(h.Get(encodedKeyHeader)); err == nil && key != "" {
		return key
	}
	return h.Get(outbox.MetadataKey)
}

var encodedKeyHeader, _ = header.EncodeValue(outbox.MetadataKey, "")

func carriesKey(h natsgo.Header) bool {
	return h.Get(outbox.MetadataKey) != "" || h.Get(encodedKeyHeader) != ""
}

// escapeUUID keeps UUIDs distinct that a header would make equal. Only escaped UUIDs contain a "%".
func escapeUUID(id string) string {
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == '%' {
			return url.PathEscape(id)
		}
	}
	return id
}

// quote renames headers that are copies of metadata and must not take effect.
func (m marshaler) quote(out *natsgo.Msg, msg *message.Message) {
	var quoted map[string]string
	for key, value := range msg.Metadata {
		carried, commands := carry(key, len(msg.Payload) == 0)
		if carried && !commands && travels(value) {
			continue
		}
		if copied := out.Header[key]; len(copied) != 1 || copied[0] != value {
			continue // the marshaler sends it elsewhere, or set this header itself
		}
		if out.Header.Del(key); key == wmnats.WatermillUUIDHdr {
			out.Header.Set(key, msg.UUID)
		}
		if quoted == nil {
			quoted = map[string]string{}
		}
		name := header.Encode(key)
		if !travels(value) {
			name, value = header.EncodeValue(key, value)
		}
		if quoted[name] = value; commands && m.quoted != nil {
			m.quoted(key)
		}
	}
	for name, value := range quoted { // its name may equal another key
		out.Header.Set(name, value)
	}
}

// carry reports whether a metadata key can be a header, and whether that header would command the server or a client.
// In a message without a payload, a client mistakes Status for a status of the server.
func carry(key string, empty bool) (carried, commands bool) {
	const own = "Nats-"
	switch {
	case key == wmnats.WatermillUUIDHdr, header.IsMarked(key), !isHeader(key):
		return false, false
	case len(key) >= len(own) && strings.EqualFold(key[:len(own)], own), key == "KV-Operation", key == "Status" && empty:
		return true, true
	}
	return true, false
}

// isHeader reports whether nats.go accepts a header name: visible ASCII except for a few characters.
func isHeader(name string) bool {
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c > '~' || strings.IndexByte("\"()/,:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return name != ""
}

// msgID joins its parts with spaces, which neither topics nor generations can contain, so the ids of two messages
// differ.
func msgID(topic string, msg *message.Message, own string) string {
	id := own
	if id == "" {
		id = escapeUUID(msg.UUID) + " " + topic
	}
	if generation := msg.Metadata.Get(outbox.MetadataGeneration); generation != "" {
		id += " " + generation
	}
	if retries := msg.Metadata.Get(requeuer.RetriesKey); retries != "" {
		// Watermill's requeuer sends a message again with the same UUID
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
