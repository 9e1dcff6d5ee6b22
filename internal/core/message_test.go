package core

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

func TestNewRecordRefusesWhatCannotBeStored(t *testing.T) {
	cases := map[string]struct {
		change func(msg *message.Message)
		key    string
		ok     bool
	}{
		"good":               {ok: true},
		"no UUID":            {change: func(m *message.Message) { m.UUID = "" }},
		"longest UUID":       {change: func(m *message.Message) { m.UUID = strings.Repeat("u", MaxUUIDBytes) }, ok: true},
		"UUID too long":      {change: func(m *message.Message) { m.UUID = strings.Repeat("u", MaxUUIDBytes+1) }},
		"UUID with NUL":      {change: func(m *message.Message) { m.UUID = "a\x00" }},
		"UUID not UTF-8":     {change: func(m *message.Message) { m.UUID = "\xff" }},
		"longest key":        {key: strings.Repeat("k", MaxKeyBytes), ok: true},
		"key too long":       {key: strings.Repeat("k", MaxKeyBytes+1)},
		"key with NUL":       {key: "\x00"},
		"key not UTF-8":      {key: "\xed\xa0\x80"},
		"largest payload":    {change: func(m *message.Message) { m.Payload = make([]byte, 10) }, ok: true},
		"payload too large":  {change: func(m *message.Message) { m.Payload = make([]byte, 11) }},
		"payload not UTF-8":  {change: func(m *message.Message) { m.Payload = []byte{0, 0xff} }, ok: true},
		"metadata unicode":   {change: func(m *message.Message) { m.Metadata.Set("é☃", "😀\ufffd") }, ok: true},
		"metadata key NUL":   {change: func(m *message.Message) { m.Metadata.Set("\x00", "") }},
		"metadata value NUL": {change: func(m *message.Message) { m.Metadata.Set("", "\x00") }},
		"metadata half rune": {change: func(m *message.Message) { m.Metadata.Set("k", "\xe2\x98") }},
		"metadata too large": {change: func(m *message.Message) {
			m.Metadata.Set("k", strings.Repeat("x", MaxMetadataBytes))
		}},
		"nil metadata":         {change: func(m *message.Message) { m.Metadata = nil }, ok: true},
		"metadata Outbox_Key":  {change: func(m *message.Message) { m.Metadata.Set("Outbox_Key", "k") }},
		"metadata outbox-key":  {change: func(m *message.Message) { m.Metadata.Set("outbox-key", "k") }},
		"metadata outboxKey":   {change: func(m *message.Message) { m.Metadata.Set("outboxKey", "k") }},
		"metadata outbox_kye":  {change: func(m *message.Message) { m.Metadata.Set("outbox_kye", "k") }},
		"metadata outbox_ke":   {change: func(m *message.Message) { m.Metadata.Set("outbox_ke", "k") }},
		"metadata outbox_kez":  {change: func(m *message.Message) { m.Metadata.Set("outbox_kez", "k") }},
		"metadata outbox-keys": {change: func(m *message.Message) { m.Metadata.Set("outbox-keys", "k") }},
		"metadata uotbox key":  {change: func(m *message.Message) { m.Metadata.Set("uotbox key", "k") }},
		"metadata outbox_id":   {change: func(m *message.Message) { m.Metadata.Set("outbox_id", "k") }, ok: true},
		"metadata generation":  {change: func(m *message.Message) { m.Metadata.Set("OUTBOX-GENERATION", "1") }},
		"metadata outbox_key":  {change: func(m *message.Message) { m.Metadata.Set("outbox_key", "k") }, ok: true},
		"metadata of others":   {change: func(m *message.Message) { m.Metadata.Set("outbox_key_id", "k") }, ok: true},
		"delay not a time":     {change: func(m *message.Message) { m.Metadata.Set(delay.DelayedUntilKey, "soon") }},
		"delay before year 1": {change: func(m *message.Message) {
			m.Metadata.Set(delay.DelayedUntilKey, "0001-01-01T00:00:00+01:00")
		}},
		"delay not a duration": {change: func(m *message.Message) { m.Metadata.Set(delay.DelayedForKey, "5") }},
	}
	for name, c := range cases {
		msg := message.NewMessage("id", nil)
		if c.change != nil {
			c.change(msg)
		}
		r, err := newRecord("topic", msg, c.key, 10)
		if c.ok {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if (r.payload == nil) != (msg.Payload == nil) {
				t.Errorf("%s: payload %#v would be stored as %#v", name, msg.Payload, r.payload)
			}
			continue
		}
		if !errors.Is(err, ErrInvalidMessage) {
			t.Errorf("%s: %v", name, err)
		} else if !text.Storable(err.Error()) {
			t.Errorf("%s: the error itself cannot be logged: %q", name, err)
		}
	}
}

func FuzzMetadataComesOutAsItWentIn(f *testing.F) {
	f.Add("key", "value")
	f.Add("<>&\u2028", `"\`)
	f.Add("\x00", "\xff")
	f.Fuzz(func(t *testing.T, key, value string) {
		msg := message.NewMessage("id", nil)
		msg.Metadata.Set(key, value)
		r, err := newRecord("topic", msg, "", 0)
		if err != nil {
			return
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(r.metadata), &got); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[key] != value {
			t.Errorf("%q: %q was stored as %q", key, value, got)
		}
	})
}

func TestDelayMetadata(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678, time.FixedZone("", 3600))
	cases := map[string]struct {
		set   func(msg *message.Message)
		due   string
		delay float64
	}{
		"none":             {func(*message.Message) {}, "", noDelay},
		"SetDueAt":         {func(m *message.Message) { SetDueAt(m, at) }, "2030-01-02T02:04:05.000000678Z", noDelay},
		"SetDelay":         {func(m *message.Message) { SetDelay(m, 1500*time.Millisecond) }, "", 1.5},
		"SetDelay longest": {func(m *message.Message) { SetDelay(m, math.MaxInt64) }, "", float64(math.MaxInt64) / 1e9},
		"into the past":    {func(m *message.Message) { SetDelay(m, -time.Second) }, "", 0},
		"until after for": {func(m *message.Message) {
			SetDelay(m, time.Second)
			SetDueAt(m, at)
		}, "2030-01-02T02:04:05.000000678Z", noDelay},
		"for after until": {func(m *message.Message) { SetDueAt(m, at); SetDelay(m, time.Second) }, "", 1},
		"both by hand": {func(m *message.Message) {
			m.Metadata.Set(delay.DelayedForKey, "1s")
			m.Metadata.Set(delay.DelayedUntilKey, "2030-01-02T03:04:05+01:00")
		}, "2030-01-02T02:04:05Z", noDelay},
	}
	for name, c := range cases {
		msg := message.NewMessage("id", nil)
		c.set(msg)
		r, err := newRecord("topic", msg, "", 0)
		if err != nil || r.due != c.due || r.delay != c.delay {
			t.Errorf("%s: due %q, delay %v, %v", name, r.due, r.delay, err)
		}
	}
}

func TestChunksHoldAllInOrderWithinTheLimits(t *testing.T) {
	for name, c := range map[string]struct {
		n, size, chunks int
	}{
		"none":                        {0, 0, 0},
		"one":                         {1, 0, 1},
		"rows of one":                 {maxChunkRows, 1, 1},
		"one more row":                {maxChunkRows + 1, 1, 2},
		"bytes of one":                {4, maxChunkBytes / 4, 1},
		"one more byte":               {5, maxChunkBytes / 4, 2},
		"each larger than the limit ": {3, maxChunkBytes + 1, 3},
	} {
		records := make([]record, c.n)
		payload := make([]byte, c.size)
		for i := range records {
			records[i] = record{uuid: string(rune('a' + i)), payload: payload, delay: noDelay}
		}
		list := chunks("insert", records)
		if len(list) != c.chunks {
			t.Errorf("%s: %d chunks", name, len(list))
		}
		i := 0
		for _, s := range list {
			uuids := s.Args[0].([]string)
			if len(uuids) == 0 || len(uuids) > maxChunkRows || (len(uuids) > 1 && len(uuids)*c.size > maxChunkBytes) {
				t.Errorf("%s: a chunk of %d rows", name, len(uuids))
			}
			for _, u := range uuids {
				if u != records[i].uuid {
					t.Fatalf("%s: record %d is out of place", name, i)
				}
				i++
			}
			if s.Args[5].([]string) != nil || s.Args[6].([]float64) != nil {
				t.Errorf("%s: arrays of delays although no message is delayed", name)
			}
		}
		if i != c.n {
			t.Errorf("%s: %d of %d records", name, i, c.n)
		}
	}
}

func TestChunkWithADelay(t *testing.T) {
	s := insertStatement("insert", []record{{delay: noDelay}, {delay: 2}, {delay: noDelay}, {due: "d", delay: noDelay}})
	dues, delays := s.Args[5].([]string), s.Args[6].([]float64)
	if strings.Join(dues, ",") != ",,,d" || len(delays) != 4 || delays[0] != noDelay || delays[1] != 2 ||
		delays[2] != noDelay || delays[3] != noDelay {
		t.Errorf("dues %q, delays %v", dues, delays)
	}
}
