// Package cloudevents maps messages to CloudEvents 1.0 in binary mode: attributes are headers next to the metadata.
package cloudevents

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// ContentType is the header, and the metadata key, for the media type of the payload.
const ContentType = "content-type"

// inMetadata is the prefix of attributes in metadata, for all brokers.
const inMetadata = "ce_"

// CheckSource returns an error for a source that cannot be an attribute.
func CheckSource(source string) error {
	if !storable(source) {
		return errors.New("CloudEvents.Source is empty or has control characters: name the service, such as /orders")
	}
	return nil
}

// Encode returns a copy of a message with its attributes among the metadata, named with the first of the prefixes that
// its receiver reads. It returns outbox.ErrInvalidMessage for a message that cannot be a CloudEvent.
func Encode(msg *message.Message, source, contentType string, prefixes ...string) (*message.Message, error) {
	if err := CheckSource(source); err != nil {
		return nil, err
	}
	out := message.NewMessage(msg.UUID, msg.Payload)
	out.SetContext(msg.Context())
	attributes, rest := split(msg.Metadata, append([]string{inMetadata}, prefixes...))
	out.Metadata = rest
	attributes["specversion"], attributes["source"] = "1.0", source
	attributes["id"], attributes["type"] = msg.UUID, msg.Metadata[outbox.MetadataEventType]
	delete(attributes, "time")
	if at := msg.Metadata[outbox.MetadataOccurredAt]; at != "" {
		if _, err := time.Parse(time.RFC3339, at); err == nil {
			attributes["time"] = at
		}
	}
	for name, value := range attributes {
		switch {
		case name == "type" && value == "":
			return nil, fmt.Errorf("%w %q: a CloudEvent needs a type: set metadata %s with outbox.SetEvent",
				outbox.ErrInvalidMessage, msg.UUID, outbox.MetadataEventType)
		case !isName(name) || !storable(value):
			return nil, fmt.Errorf("%w %q: %q cannot be an attribute of a CloudEvent: names have letters a to z and digits, "+
				"values no control characters and no space at the ends", outbox.ErrInvalidMessage, msg.UUID, name)
		}
		out.Metadata[prefixes[0]+name] = value
	}
	out.Metadata[ContentType] = cmp.Or(takeContentType(rest), contentType, "application/json")
	return out, nil
}

// takeContentType removes the media type of the payload from metadata and returns it. The key may have another case if
// it was copied from an HTTP header. Of several spellings it prefers the constant, then the first in byte order.
func takeContentType(metadata message.Metadata) (value string) {
	value = metadata[ContentType]
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if strings.EqualFold(key, ContentType) {
			value = cmp.Or(value, metadata[key])
			delete(metadata, key)
		}
	}
	return value
}

// Decode gives a message that was received as a CloudEvent its UUID and metadata: event type, time, and every other
// attribute as "ce_" and its name. Other messages are left unchanged.
func Decode(msg *message.Message, prefixes ...string) {
	attributes, rest := split(msg.Metadata, prefixes)
	if attributes["specversion"] != "1.0" || attributes["id"] == "" {
		return
	}
	msg.UUID, msg.Metadata = attributes["id"], rest
	if event := attributes["type"]; event != "" {
		rest[outbox.MetadataEventType] = event
	}
	if at := attributes["time"]; at != "" {
		rest[outbox.MetadataOccurredAt] = at
	}
	for name, value := range attributes {
		switch name {
		case "specversion", "id", "type", "time":
		case "datacontenttype": // as the SDK for NATS spells them
			rest[ContentType] = value
		default:
			rest[inMetadata+name] = value
		}
	}
}

// split separates attributes from other metadata. Of two keys for one attribute it takes the exact spelling, with an
// earlier prefix if both are exact, or else the first in byte order. Empty values count as absent.
func split(metadata message.Metadata, prefixes []string) (attributes map[string]string, rest message.Metadata) {
	attributes, rest = map[string]string{}, message.Metadata{}
	from := map[string]string{} // the key of each attribute
	rank := func(key, name string) int {
		if i := slices.IndexFunc(prefixes, func(prefix string) bool { return key == prefix+name }); i >= 0 {
			return i
		}
		return len(prefixes)
	}
	for key, value := range metadata {
		name := attribute(key, prefixes)
		if name == "" {
			rest[key] = value
			continue
		}
		other, found := from[name]
		if value == "" || found && cmp.Or(rank(key, name)-rank(other, name), strings.Compare(key, other)) > 0 {
			continue
		}
		from[name], attributes[name] = key, value
	}
	return attributes, rest
}

// attribute returns the attribute that a key names, or "". Keys are not case-sensitive, as in the SDK.
func attribute(key string, prefixes []string) string {
	key = strings.ToLower(key)
	for _, prefix := range prefixes {
		if name, ok := strings.CutPrefix(key, strings.ToLower(prefix)); ok {
			return name
		}
	}
	return ""
}

func isName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

func storable(value string) bool {
	return value != "" && value == strings.TrimSpace(value) && !strings.ContainsFunc(value, unicode.IsControl)
}
