package header

import (
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// FuzzNames: two keys, one of them encoded, are restored unchanged, and any header name from outside is either decoded
// to the key that encodes to it, or unchanged.
func FuzzNames(f *testing.F) {
	for _, s := range []string{
		"", "a b", "%", "%%25", "größe", "\x00", "\xff", "Nats-TTL", "%Nats-TTL", "%zz", "%a%62",
	} {
		f.Add(s, "plain")
	}
	f.Fuzz(func(t *testing.T, key, other string) {
		if IsMarked(other) {
			other = strings.TrimLeft(other, mark)
		}
		want := message.Metadata{key: "1", other: "2"}
		sent := message.Metadata{Encode(key): "1", other: "2"}
		if key == other {
			want = message.Metadata{key: "1"}
			delete(sent, other)
		}
		if Decode(sent); !maps.Equal(sent, want) {
			t.Errorf("got %q, want %q", sent, want)
		}
		foreign := message.Metadata{key: "1"}
		Decode(foreign)
		for decoded := range foreign {
			if decoded != key && Encode(decoded) != key {
				t.Errorf("%q is decoded as %q", key, decoded)
			}
		}
	})
}
