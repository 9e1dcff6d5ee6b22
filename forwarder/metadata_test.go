package forwarder

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

func FuzzDecodeMetadata(f *testing.F) {
	for _, text := range []string{
		`{}`, ` { } `, `{"a": "b"}`, `{"a":"b","c":"d"}`, `{ "a" : "b" , "" : "" }`, `{"a": "b"} `, `{"a": "b", "a": "c"}`,
		`{"q": "\"", "u": "\u00e9", "b": "\\"}`, `{"é": "日本"}`, "{\"a\": \"\x7f\"}",
		`null`, ``, `{`, `{"a"}`, `{"a": 1}`, `{"a": "b",}`, `{"a": "b"}}`, `{"a": "b"`, `{"a": {"b": "c"}}`, `[]`, `"a"`,
		"{\"a\": \"\n\"}", "{\"a\": \"\xff\"}",
		"\t{\n\"a\": \"b\"}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want message.Metadata
		wantErr := json.Unmarshal(text, &want)
		got, err := decodeMetadata(text)
		if (err == nil) != (wantErr == nil) || err == nil && !maps.Equal(got, want) {
			t.Fatalf("%q: %v, %v instead of %v, %v", text, got, err, want, wantErr)
		}
		if got == nil {
			t.Fatalf("%q: no metadata", text)
		}
	})
}

func BenchmarkDecodeMetadata(b *testing.B) {
	text := []byte(`{"outbox_key": "key-1234", "correlation_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}`)
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			_, _ = decodeMetadata(text)
		}
	})
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			var m message.Metadata
			_ = json.Unmarshal(text, &m)
		}
	})
}
