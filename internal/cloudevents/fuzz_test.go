package cloudevents

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// FuzzRoundTrip: a received event equals the sent one, whatever its metadata keys are.
func FuzzRoundTrip(f *testing.F) {
	f.Add("uuid", "OrderPlaced", "tenant", "t1")
	for _, key := range []string{"CE-ID", "Ce_Id", "CLOUDEVENTS_ID", "cloudevents:id", "ce_specversion", "ce-time"} {
		f.Add("uuid", "OrderPlaced", key, "another")
	}
	f.Fuzz(func(t *testing.T, uuid, event, key, value string) {
		for _, prefixes := range [][]string{{"ce_"}, {"ce-"}, {"cloudEvents:", "cloudEvents_"}} {
			msg := message.NewMessage(uuid, nil)
			msg.Metadata.Set(key, value)
			msg.Metadata.Set(outbox.MetadataEventType, event)
			sent, err := Encode(msg, "/orders", "", prefixes...)
			if err != nil {
				continue
			}
			for range 3 { // Decode reads a map, in any order
				got := sent.Copy()
				Decode(got, prefixes...)
				name := strings.ToLower(key)
				if got.UUID != uuid || got.Metadata[outbox.MetadataEventType] != event ||
					!strings.HasPrefix(name, "ce") && !strings.HasPrefix(name, "cloud") && name != ContentType &&
						got.Metadata[key] != msg.Metadata[key] {
					t.Errorf("sent %q %v, got %q %v", uuid, msg.Metadata, got.UUID, got.Metadata)
				}
			}
		}
	})
}
