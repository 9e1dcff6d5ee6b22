package core

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// FuzzRecordKey: the ordering key can be stored, the record's key is restored from it unchanged, and different record
// keys have different ordering keys.
func FuzzRecordKey(f *testing.F) {
	for _, key := range []string{"", "order/1", "\x00\x00\x00\x2a", "\xff", "%", "%41", "%A", "%%00", "%%2500", " ",
		"größe"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, record string) {
		key := KeyOfRecord([]byte(record))
		if got := string(RecordKey(key)); got != record {
			t.Errorf("%q was restored as %q", record, got)
		}
		if strings.ContainsRune(key, 0) {
			t.Errorf("%q cannot be stored", key)
		}
		if own := string(KeyOfRecord(RecordKey(record))); strings.ToValidUTF8(record, "") == record &&
			!strings.ContainsRune(record, 0) && own != record {
			t.Errorf("the key %q of an outbox was restored as %q", record, own)
		}
	})
}

func TestKeyOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		metadata message.Metadata
		want     string
		invalid  bool
	}{
		{"none", nil, "", false},
		{"outbox key", message.Metadata{MetadataKey: "k", MetadataAggregateType: "order", MetadataAggregateID: "1"}, "k",
			false},
		{"no order on purpose", message.Metadata{MetadataKey: "", MetadataAggregateType: "order", MetadataAggregateID: "1"},
			"", false},
		{"aggregate", message.Metadata{MetadataAggregateType: "order", MetadataAggregateID: "1"}, "order/1", false},
		{"half an aggregate", message.Metadata{MetadataAggregateID: "1"}, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			msg := message.NewMessage("u", nil)
			for k, v := range tt.metadata {
				msg.Metadata[k] = v
			}
			got, err := KeyOf(msg)
			if got != tt.want || (err != nil) != tt.invalid {
				t.Errorf("got %q, %v", got, err)
			}
			// Stored with a key, it is published with the same key.
			for _, stored := range []string{"", "other"} {
				out := msg.Copy()
				SetKey(out, stored)
				want := stored
				if own, set := tt.metadata[MetadataKey]; set && (own != "" || stored == "") {
					want = own
				}
				if got, err := KeyOf(out); err != nil || got != want {
					t.Errorf("stored with key %q, published with key %q, %v", stored, got, err)
				}
			}
		})
	}
}
