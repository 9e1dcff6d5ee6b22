package core

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Limits of the outbox columns other than the payload, in bytes.
const (
	MaxKeyBytes   = 1024
	MaxUUIDBytes  = 255
	MaxTopicBytes = 1024
)

const (
	maxChunkRows  = 1000
	maxChunkBytes = 4 << 20
	noDelay       = -1
)

// ErrInvalidMessage is outbox.ErrInvalidMessage.
var ErrInvalidMessage = errors.New("outbox: invalid message")

// record is a message that was checked and is ready to be written.
type record struct {
	uuid, topic, key string
	payload          []byte
	metadata         string  // as a JSON object
	due              string  // RFC 3339, or ""
	delay            float64 // in seconds, or noDelay
}

func (r record) size() int { return len(r.payload) + len(r.metadata) + len(r.key) + len(r.topic) }

func newRecord(topic string, msg *message.Message, key string, maxPayload int) (record, error) {
	fail := func(format string, args ...any) (record, error) {
		return record{}, fmt.Errorf("%w %q: %s", ErrInvalidMessage, msg.UUID, fmt.Sprintf(format, args...))
	}
	switch {
	case msg.UUID == "":
		return fail("it has no UUID: make it with message.NewMessage(watermill.NewUUID(), payload)")
	case len(msg.UUID) > MaxUUIDBytes:
		return record{}, fmt.Errorf("%w: its UUID has %d bytes, the limit is %d", ErrInvalidMessage, len(msg.UUID),
			MaxUUIDBytes)
	case !text.Storable(msg.UUID):
		return record{}, fmt.Errorf("%w: its UUID is invalid UTF-8 or contains a NUL", ErrInvalidMessage)
	case len(key) > MaxKeyBytes:
		return fail("its key has %d bytes, the limit is %d: hash it", len(key), MaxKeyBytes)
	case !text.Storable(key):
		return fail("its key is invalid UTF-8 or contains a NUL")
	case maxPayload > 0 && len(msg.Payload) > maxPayload:
		return fail("its payload has %d bytes, MaxPayloadBytes is %d", len(msg.Payload), maxPayload)
	}
	r := record{uuid: msg.UUID, topic: topic, key: key, payload: msg.Payload, delay: noDelay}
	for k, v := range msg.Metadata {
		if meant := Mistyped(k); meant != "" {
			return fail("metadata %q is ignored: the name is spelled %q: rename it if it is your own", k, meant)
		}
		if !text.Storable(k) || !text.Storable(v) {
			return fail("metadata %q is invalid UTF-8 or contains a NUL, and would be altered in storage",
				strings.ToValidUTF8(k, "?"))
		}
	}
	metadata, err := json.Marshal(map[string]string(msg.Metadata))
	if err != nil {
		return fail("encode metadata: %s", err)
	}
	if r.metadata = string(metadata); msg.Metadata == nil {
		r.metadata = "{}"
	}
	if len(r.metadata) > MaxMetadataBytes {
		return fail("its metadata has %d bytes, the limit is %d", len(r.metadata), MaxMetadataBytes)
	}
	if until := msg.Metadata[delay.DelayedUntilKey]; until != "" {
		at, err := time.Parse(time.RFC3339, until)
		if at = at.UTC(); err != nil || at.Year() < 1 {
			return fail("metadata %s is not an RFC 3339 time in the year 1 or later", delay.DelayedUntilKey)
		}
		r.due = at.Format(time.RFC3339Nano)
	} else if d := msg.Metadata[delay.DelayedForKey]; d != "" {
		wait, err := time.ParseDuration(d)
		if err != nil {
			return fail("metadata %s is not a duration such as 1m30s", delay.DelayedForKey)
		}
		r.delay = max(wait, 0).Seconds()
	}
	return r, nil
}

// SetDueAt is outbox.SetDueAt.
func SetDueAt(msg *message.Message, at time.Time) {
	msg.Metadata.Set(delay.DelayedUntilKey, at.UTC().Format(time.RFC3339Nano))
	delete(msg.Metadata, delay.DelayedForKey)
}

// SetDelay is outbox.SetDelay.
func SetDelay(msg *message.Message, d time.Duration) {
	msg.Metadata.Set(delay.DelayedForKey, d.String())
	delete(msg.Metadata, delay.DelayedUntilKey)
}

func checkTopic(topic string) error {
	switch {
	case topic == "":
		return fmt.Errorf("%w: the topic is empty", ErrInvalidMessage)
	case len(topic) > MaxTopicBytes:
		return fmt.Errorf("%w: the topic has %d bytes, the limit is %d", ErrInvalidMessage, len(topic), MaxTopicBytes)
	case !text.Storable(topic):
		return fmt.Errorf("%w: the topic is invalid UTF-8 or contains a NUL", ErrInvalidMessage)
	}
	return nil
}

// chunks splits records into batches with few enough rows and bytes for one round trip each.
func chunks(insert string, records []record) []drive.Statement {
	var list []drive.Statement
	for len(records) > 0 {
		n, bytes := 0, 0
		for n < len(records) && n < maxChunkRows && (n == 0 || bytes+records[n].size() <= maxChunkBytes) {
			bytes += records[n].size()
			n++
		}
		list = append(list, insertStatement(insert, records[:n]))
		records = records[n:]
	}
	return list
}

func insertStatement(insert string, records []record) drive.Statement {
	n := len(records)
	uuids, topics, keys := make([]string, n), make([]string, n), make([]string, n)
	payloads, metadata := make([][]byte, n), make([]string, n)
	var dues []string
	var delays []float64
	for i, r := range records {
		uuids[i], topics[i], keys[i], payloads[i], metadata[i] = r.uuid, r.topic, r.key, r.payload, r.metadata
		if (r.due != "" || r.delay != noDelay) && dues == nil {
			dues, delays = make([]string, n), make([]float64, n)
			for j := range delays {
				delays[j] = noDelay
			}
		}
		if dues != nil {
			dues[i], delays[i] = r.due, r.delay
		}
	}
	return drive.Statement{SQL: insert, Args: []any{uuids, topics, keys, payloads, metadata, dues, delays}}
}
