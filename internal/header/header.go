// Package header encodes metadata as headers of a broker that does not allow their names or would obey them as
// commands.
package header

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// mark is the prefix of a header name that contains a metadata key in URL query encoding.
const mark = "%"

// IsMarked reports whether a key looks like an encoded one, and so must be encoded itself.
func IsMarked(key string) bool { return strings.HasPrefix(key, mark) }

// Encode returns the name of the header for any key: letters, digits and "%+-._~".
func Encode(key string) string { return mark + url.QueryEscape(key) }

// EncodeValue returns a header for metadata whose value cannot be a header value. Its name differs from all names of
// Encode, which escapes "*".
func EncodeValue(key, value string) (name, encoded string) {
	return Encode(key) + "*", url.QueryEscape(value)
}

// Decode reverses Encode and EncodeValue. Other metadata stay.
func Decode(metadata message.Metadata) {
	var decoded map[string]string
	for name, value := range metadata {
		if !IsMarked(name) {
			continue
		}
		encoded, whole := strings.CutSuffix(name, "*")
		key, err := url.QueryUnescape(encoded[len(mark):])
		if err != nil || Encode(key) != encoded {
			continue
		}
		if whole {
			text, err := url.QueryUnescape(value)
			if err != nil || url.QueryEscape(text) != value {
				continue
			}
			value = text
		}
		if decoded == nil {
			decoded = map[string]string{}
		}
		decoded[key] = value
		delete(metadata, name)
	}
	maps.Copy(metadata, decoded)
}

// Set adds a header to the application's headers; see core.MetadataHeaders.
func Set(msg *message.Message, name, value string) {
	asked, _ := parse(msg.Metadata[core.MetadataHeaders])
	if asked == nil {
		asked = map[string]string{}
	}
	asked[name] = value
	encoded, _ := json.Marshal(asked) // cannot fail
	msg.Metadata.Set(core.MetadataHeaders, string(encoded))
}

// Take returns the headers that the application set, and the message without them. It returns outbox.ErrInvalidMessage
// for unreadable headers.
func Take(msg *message.Message) (asked map[string]string, without *message.Message, err error) {
	text, found := msg.Metadata[core.MetadataHeaders]
	if !found {
		return nil, msg, nil
	}
	if asked, err = parse(text); err != nil {
		return nil, nil, fmt.Errorf("%w: metadata %s is not a JSON object of strings: set it with nats.SetHeader",
			core.ErrInvalidMessage, core.MetadataHeaders)
	}
	return asked, Rename(msg, func(key string) string {
		if key == core.MetadataHeaders {
			return ""
		}
		return key
	}), nil
}

func parse(text string) (asked map[string]string, err error) {
	if text != "" {
		err = json.Unmarshal([]byte(text), &asked)
	}
	return asked, err
}

// Rename returns a copy of a message with renamed metadata keys, or the message itself if no key changes. Keys renamed
// to "" are removed.
func Rename(msg *message.Message, rename func(key string) string) *message.Message {
	same := true
	for key := range msg.Metadata {
		same = same && rename(key) == key
	}
	if same {
		return msg
	}
	renamed := message.NewMessage(msg.UUID, msg.Payload)
	renamed.SetContext(msg.Context())
	for key, value := range msg.Metadata {
		if name := rename(key); name != "" || key == "" {
			renamed.Metadata[name] = value
		}
	}
	return renamed
}
