package cloudevents

import (
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestTwoSpellings: of two keys for one attribute the same one is always used, although maps have no order.
func TestTwoSpellings(t *testing.T) {
	for range 20 {
		msg := message.NewMessage("1", nil)
		msg.Metadata = message.Metadata{
			outbox.MetadataEventType: "Placed", "CE_SUBJECT": "upper", "Ce_subject": "mixed", "ce_subject": "exact",
			"cloudEvents:subject": "of the broker", "CE_TENANT": "upper", "cE_tenant": "mixed", "cloudevents_zone": "lower",
			"CLOUDEVENTS:zone": "upper",
		}
		sent, err := Encode(msg, "/orders", "", "cloudEvents:", "cloudEvents_")
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"subject": "exact", "tenant": "upper", "zone": "upper"} {
			if got := sent.Metadata["cloudEvents:"+name]; got != want {
				t.Fatalf("sent %s %q, want %q", name, got, want)
			}
		}
		got := message.NewMessage("", nil)
		got.Metadata = message.Metadata{
			"cloudEvents:specversion": "1.0", "CLOUDEVENTS:ID": "upper", "cloudEvents_id": "another prefix",
			"cloudEvents:id": "exact", "cloudEvents:type": "Placed",
		}
		if Decode(got, "cloudEvents:", "cloudEvents_"); got.UUID != "exact" {
			t.Fatalf("received id %q, want the exact spelling", got.UUID)
		}
	}
}

// TestEmptyAttributes: the specification has no empty values, so empty attributes are omitted.
func TestEmptyAttributes(t *testing.T) {
	msg := message.NewMessage("1", nil)
	msg.Metadata = message.Metadata{
		outbox.MetadataEventType: "Placed", "ce_subject": "", "CE_TENANT": "t1", "ce_tenant": "",
	}
	sent, err := Encode(msg, "/orders", "", "ce_")
	if err != nil {
		t.Fatal(err)
	}
	want := message.Metadata{
		outbox.MetadataEventType: "Placed", "ce_id": "1", "ce_type": "Placed", "ce_source": "/orders",
		"ce_specversion": "1.0", "ce_tenant": "t1", ContentType: "application/json",
	}
	if !maps.Equal(sent.Metadata, want) {
		t.Errorf("sent %q, want %q", sent.Metadata, want)
	}
	got := message.NewMessage("", nil)
	got.Metadata = message.Metadata{"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/orders", "ce_subject": ""}
	Decode(got, "ce_")
	if want := (message.Metadata{"ce_source": "/orders"}); got.UUID != "1" || !maps.Equal(got.Metadata, want) {
		t.Errorf("received %q %q, want %q", got.UUID, got.Metadata, want)
	}
}

// TestContentTypeInAnyCase: metadata copied from HTTP headers gives one content type, not two.
func TestContentTypeInAnyCase(t *testing.T) {
	for _, c := range []struct {
		metadata message.Metadata
		want     string
	}{
		{message.Metadata{}, "text/plain"},
		{message.Metadata{"Content-Type": "text/xml"}, "text/xml"},
		{message.Metadata{"Content-Type": "text/xml", "content-type": "text/csv"}, "text/csv"},
		{message.Metadata{"Content-Type": "", "CONTENT-TYPE": "text/csv"}, "text/csv"},
	} {
		msg := message.NewMessage("1", nil)
		msg.Metadata = maps.Clone(c.metadata)
		msg.Metadata[outbox.MetadataEventType] = "Placed"
		sent, err := Encode(msg, "/orders", "text/plain", "ce_")
		if err != nil {
			t.Fatal(err)
		}
		if got := sent.Metadata[ContentType]; got != c.want || len(sent.Metadata) != 6 {
			t.Errorf("%q: %q, want %q", c.metadata, sent.Metadata, c.want)
		}
	}
}
