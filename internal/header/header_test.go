package header

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestAnyKeysComeBack: any set of keys, including encoded keys and keys that look encoded, gets distinct names and is
// restored.
func TestAnyKeysComeBack(t *testing.T) {
	t.Parallel()
	keys := []string{
		"", " ", "a b", "a+b", "%", "%%", "%a", "%%25a", "%%2525a", "größe", "\x00", "\xff", "a:b", "=", "%zz", "%+",
		"Nats-TTL", "%Nats-TTL",
	}
	for _, all := range []bool{true, false} { // or only the keys that must be encoded
		want, sent := message.Metadata{}, message.Metadata{}
		for _, key := range keys {
			name := key
			if all || IsMarked(key) {
				name = Encode(key)
			}
			want[key], sent[name] = key, key
			if strings.Trim(Encode(key), "%+-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") != "" {
				t.Errorf("%q is sent as %q", key, Encode(key))
			}
		}
		if Decode(sent); !maps.Equal(sent, want) {
			t.Errorf("got %q, want %q", sent, want)
		}
	}
	for _, foreign := range []string{"%a%62", "%a%2F%", "% "} { // Encode never produces these
		m := message.Metadata{foreign: "x"}
		if Decode(m); m[foreign] != "x" {
			t.Errorf("%q became %v", foreign, m)
		}
	}
}

func TestTake(t *testing.T) {
	t.Parallel()
	plain := message.NewMessage("u", nil)
	plain.Metadata = message.Metadata{"": "empty", "a": "b"}
	if asked, same, err := Take(plain); asked != nil || same != plain || err != nil {
		t.Errorf("got %v, %v, %v", asked, same, err)
	}
	msg := plain.Copy()
	Set(msg, "A", "1")
	Set(msg, "B", "2\n")
	Set(msg, "A", "3")
	asked, without, err := Take(msg)
	if err != nil || !maps.Equal(asked, map[string]string{"A": "3", "B": "2\n"}) || !without.Equals(plain) ||
		len(msg.Metadata) != 3 {
		t.Errorf("got %v, %v, %v", asked, without, err)
	}
	for _, bad := range []string{"x", "[]", `{"A":1}`} {
		msg.Metadata.Set(core.MetadataHeaders, bad)
		if _, _, err := Take(msg); !errors.Is(err, core.ErrInvalidMessage) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
