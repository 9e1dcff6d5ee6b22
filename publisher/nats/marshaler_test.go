package nats_test

import (
	"errors"
	"testing"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

func TestMarshalerMsgID(t *testing.T) {
	id := func(m wmnats.Marshaler, topic, uuid string, metadata message.Metadata) string {
		t.Helper()
		msg := message.NewMessage(uuid, nil)
		msg.Metadata = metadata
		out, err := nats.Marshaler{Marshaler: m}.Marshal(topic, msg)
		if err != nil {
			t.Fatal(err)
		}
		return out.Header.Get(natsgo.MsgIdHdr)
	}
	generation := func(n string) message.Metadata { return message.Metadata{outbox.MetadataGeneration: n} }
	own := message.Metadata{natsgo.MsgIdHdr: "own", outbox.MetadataGeneration: "1"}

	for name, m := range map[string]wmnats.Marshaler{
		"default": nil, "nats": &wmnats.NATSMarshaler{}, "gob": wmnats.GobMarshaler{}, "json": wmnats.JSONMarshaler{},
	} {
		t.Run(name, func(t *testing.T) {
			if a, b := id(m, "a", "u", nil), id(m, "a", "u", nil); a != b || a == "" {
				t.Errorf("a retry must have the same id: %q, %q", a, b)
			}
			if got := id(m, "a", "u", own); got != "own" {
				t.Errorf("got %q, want the user's own", got)
			}
			seen := map[string]string{}
			for what, got := range map[string]string{
				"first":                    id(m, "a", "u", nil),
				"other uuid":               id(m, "a", "v", nil),
				"other topic":              id(m, "b", "u", nil),
				"requeued":                 id(m, "a", "u", generation("1")),
				"requeued twice":           id(m, "a", "u", generation("2")),
				"topic like a generation":  id(m, "a.1", "u", nil),
				"uuid with a space":        id(m, "b", "u a", nil),
				"topic with a slash":       id(m, "a/1", "u", nil),
				"other topic and requeued": id(m, "b", "u", generation("1")),
				"by Watermill's requeuer":  id(m, "a", "u", message.Metadata{requeuer.RetriesKey: "1"}),
				"by it once more":          id(m, "a", "u", message.Metadata{requeuer.RetriesKey: "2"}),
			} {
				if other, ok := seen[got]; ok {
					t.Errorf("%s and %s share the id %q", what, other, got)
				}
				seen[got] = what
			}
		})
	}
}

func TestMarshalerIsReadByWatermillNATS(t *testing.T) {
	for name, m := range map[string]wmnats.MarshalerUnmarshaler{
		"nats": &wmnats.NATSMarshaler{}, "gob": wmnats.GobMarshaler{}, "json": wmnats.JSONMarshaler{},
	} {
		msg := message.NewMessage("the-uuid", []byte{0, 1, 0xff})
		msg.Metadata.Set("tenant", "acme")
		out, err := nats.Marshaler{Marshaler: m}.Marshal("a.b", msg)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Unmarshal(out)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equals(msg) {
			t.Errorf("%s: got %s %v %q, want %s %v %q", name, got.UUID, got.Metadata, got.Payload, msg.UUID, msg.Metadata, msg.Payload)
		}
	}
}

func TestMarshalerRefusesBadSubjects(t *testing.T) {
	for _, topic := range []string{"", ".", "a.", ".a", "a..b", "*", "a.*", "a.*.b", ">", "a.>", "a b", "a\tb", "a\r\nPUB x 0"} {
		_, err := nats.Marshaler{}.Marshal(topic, message.NewMessage("u", nil))
		if !errors.Is(err, natsgo.ErrBadSubject) || nats.Classify(err) != permanent {
			t.Errorf("%q: got %v, %v, want ErrBadSubject, permanent", topic, err, nats.Classify(err))
		}
	}
	for _, topic := range []string{"a", "a.b-c_d.1", "a*b", "größe.ß", "a/b", "$X.y"} {
		if _, err := (nats.Marshaler{}).Marshal(topic, message.NewMessage("u", nil)); err != nil {
			t.Errorf("%q: %v", topic, err)
		}
	}
}

type failingMarshaler struct{ err error }

func (m failingMarshaler) Marshal(string, *message.Message) (*natsgo.Msg, error) { return nil, m.err }

func TestMarshalerPassesErrorsOn(t *testing.T) {
	want := errors.New("no schema")
	_, err := nats.Marshaler{Marshaler: failingMarshaler{want}}.Marshal("a", message.NewMessage("u", nil))
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// NATSMarshaler would send the metadata's value as the UUID.
func TestMarshalerRefusesAnotherUUID(t *testing.T) {
	msg := message.NewMessage("uuid", nil)
	for value, want := range map[string]error{"another": outbox.ErrInvalidMessage, "": outbox.ErrInvalidMessage, "uuid": nil} {
		msg.Metadata.Set(wmnats.WatermillUUIDHdr, value)
		_, err := nats.Marshaler{}.Marshal("a", msg)
		if !errors.Is(err, want) || err != nil && nats.Classify(err) != permanent {
			t.Errorf("%q: got %v, %v, want %v, permanent", value, err, nats.Classify(err), want)
		}
	}
}
