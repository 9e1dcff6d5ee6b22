package core

import (
	"strings"
)

// MaxMetadataBytes is the largest size of a message's metadata as JSON.
const MaxMetadataBytes = 1 << 20

// Metadata that the write side or the forwarder reads; package outbox says what for.
const (
	MetadataKey           = "outbox_key"
	MetadataGeneration    = "outbox_generation"
	MetadataAggregateType = "aggregate_type"
	MetadataAggregateID   = "aggregate_id"
)

// Mistyped returns which metadata of ours a key is likely meant to be that differs from it in case or separators, and so is
// refused.
func Mistyped(key string) string {
	if len(key) > len(MetadataGeneration)+2 || len(key) < len(MetadataKey)-1 {
		return ""
	}
	for _, known := range []string{MetadataKey, MetadataGeneration} {
		if key != known && letters(key) == letters(known) {
			return known
		}
	}
	return ""
}

func letters(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "", " ", "").Replace(s))
}
