package core

import (
	"encoding/json"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// MaxMetadataBytes is the largest size of a message's metadata as JSON.
const MaxMetadataBytes = 1 << 20

// Metadata that the write side or the forwarder reads; package outbox documents the meaning.
const (
	MetadataKey           = "outbox_key"
	MetadataGeneration    = "outbox_generation"
	MetadataAggregateType = "aggregate_type"
	MetadataAggregateID   = "aggregate_id"
	MetadataHeaders       = "outbox_headers"
)

// Commands reports whether a metadata key would command a broker if it were the name of a header: JetStream interprets
// names that begin with Nats-, RabbitMQ routes by CC and BCC and delays by x-delay, Watermill's publishers carry the
// UUID in one. A dead letter has such metadata under another name. Package sqltext has the same rule in SQL.
func Commands(key string) bool {
	switch key {
	case MetadataHeaders, "_watermill_message_uuid", "CC", "BCC", "x-delay":
		return true
	}
	const nats = "Nats-"
	return len(key) >= len(nats) && strings.EqualFold(key[:len(nats)], nats)
}

// DropHeaders removes from a consumed message the metadata that would command a broker wherever it is copied. It writes
// to the metadata only if something must be removed, because an in-process publisher may be reading them.
func DropHeaders(msg *message.Message) {
	//lint:ignore S1033 to delete what is absent is a write all the same
	if _, found := msg.Metadata[MetadataHeaders]; found {
		delete(msg.Metadata, MetadataHeaders)
	}
}

// ReadMetadata reads metadata from a table, including rows written by SQL: a value that is not a string is replaced by
// its JSON, null by an empty string, and metadata that is not an object is stored under an empty name.
func ReadMetadata(stored []byte) message.Metadata {
	m := message.Metadata{}
	var loose map[string]json.RawMessage
	switch {
	case string(stored) == "{}" || string(stored) == "null":
		return m
	case json.Unmarshal(stored, &m) == nil:
		return m
	case json.Unmarshal(stored, &loose) != nil:
		return message.Metadata{"": string(stored)}
	}
	m = message.Metadata{}
	for k, raw := range loose {
		var v string
		if json.Unmarshal(raw, &v) != nil {
			v = string(raw)
		}
		m[k] = v
	}
	return m
}

// Mistyped returns which of our metadata keys was probably meant by a key that differs in case, in separators, or by
// one typing error.
func Mistyped(key string) string {
	if len(key) > len(MetadataGeneration)+3 || len(key) < len(MetadataKey)-2 {
		return ""
	}
	var folded, own [len(MetadataGeneration) + 3]byte
	for _, known := range []string{MetadataKey, MetadataGeneration} {
		if key != known && oneSlip(fold(folded[:0], key), fold(own[:0], known)) {
			return known
		}
	}
	return ""
}

// fold appends the letters of s.
func fold(to []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '_' || c == '-' || c == '.' || c == ' ':
		case 'A' <= c && c <= 'Z':
			to = append(to, c+'a'-'A')
		default:
			to = append(to, c)
		}
	}
	return to
}

// oneSlip reports whether two texts differ by one letter that is missing, extra or different, or by two letters that
// are swapped.
func oneSlip(a, b []byte) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return max(len(a), len(b)) <= 1 || len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0]
}
