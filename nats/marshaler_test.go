package nats_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/nats"
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
	request := message.NewMessage("", nil)
	nats.SetHeader(request, natsgo.MsgIdHdr, "own")
	own := func(more message.Metadata) message.Metadata {
		maps.Copy(more, request.Metadata)
		return more
	}

	for name, m := range map[string]wmnats.Marshaler{
		"default": nil, "nats": &wmnats.NATSMarshaler{}, "gob": wmnats.GobMarshaler{}, "json": wmnats.JSONMarshaler{},
	} {
		t.Run(name, func(t *testing.T) {
			if a, b := id(m, "a", "u", nil), id(m, "a", "u", nil); a != b || a == "" {
				t.Errorf("a retry must have the same id: %q, %q", a, b)
			}
			if got := id(m, "a", "u", own(message.Metadata{})); got != "own" {
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
				"own":                      id(m, "a", "u", own(message.Metadata{})),
				"own, requeued":            id(m, "a", "u", own(generation("1"))),
				"own, by the requeuer":     id(m, "a", "u", own(message.Metadata{requeuer.RetriesKey: "1"})),
				"another message's":        id(m, "c", "u", message.Metadata{natsgo.MsgIdHdr: "own"}),
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
			t.Errorf("%s: got %s %v %q, want %s %v %q", name, got.UUID, got.Metadata, got.Payload, msg.UUID, msg.Metadata,
				msg.Payload)
		}
	}
}

func TestMarshalerRefusesBadSubjects(t *testing.T) {
	for _, topic := range []string{
		"", ".", "a.", ".a", "a..b", "*", "a.*", "a.*.b", ">", "a.>", "a b", "a\tb", "a\r\nPUB x 0",
	} {
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
func TestMarshalerKeepsTheUUID(t *testing.T) {
	msg := message.NewMessage("uuid", nil)
	for _, value := range []string{"another", "", "uuid"} {
		msg.Metadata.Set(wmnats.WatermillUUIDHdr, value)
		out, err := nats.Marshaler{}.Marshal("a", msg)
		if err != nil {
			t.Fatal(err)
		}
		for what, u := range map[string]wmnats.Unmarshaler{
			"unchanged": &wmnats.NATSMarshaler{}, "decoded": nats.Unmarshaler{},
		} {
			got, err := u.Unmarshal(out)
			if err != nil || got.UUID != "uuid" {
				t.Errorf("%s: %q: got %v, %v", what, value, got, err)
			}
			if what == "decoded" && !got.Equals(msg) {
				t.Errorf("%q: got %v", value, got.Metadata)
			}
		}
	}
}

// settingMarshaler itself sets a header, from metadata with another name.
type settingMarshaler struct{ wmnats.NATSMarshaler }

func (m *settingMarshaler) Marshal(topic string, msg *message.Message) (*natsgo.Msg, error) {
	out, err := m.NATSMarshaler.Marshal(topic, msg)
	out.Header.Set(natsgo.MsgTTLHdr, msg.Metadata.Get("ttl"))
	return out, err
}

// The application's own marshaler can set commands, but the metadata that it copies are not commands. Gob and JSON
// marshalers send no headers at all.
func TestMarshalerCommands(t *testing.T) {
	for name, tt := range map[string]struct {
		inner wmnats.Marshaler
		want  string
	}{
		"a marshaler's own": {&settingMarshaler{}, "1h"}, "copied": {nil, ""}, "gob": {wmnats.GobMarshaler{}, ""},
		"json": {wmnats.JSONMarshaler{}, ""},
	} {
		msg := message.NewMessage("u", nil)
		msg.Metadata = message.Metadata{"ttl": "1h", natsgo.MsgTTLHdr: "never", natsgo.MsgRollup: "all"}
		nats.SetHeader(msg, natsgo.ExpectedStreamHdr, "OTHER")
		nats.SetHeader(msg, natsgo.ExpectedStreamHdr, "ORDERS")
		out, err := nats.Marshaler{Marshaler: tt.inner}.Marshal("a", msg)
		if err != nil {
			t.Fatal(err)
		}
		if ttl := out.Header.Get(natsgo.MsgTTLHdr); ttl != tt.want || out.Header.Get(natsgo.MsgRollup) != "" {
			t.Errorf("%s: got %v", name, out.Header)
		}
		if got := out.Header.Get(natsgo.ExpectedStreamHdr); got != "ORDERS" || strings.Contains(string(out.Data), "ORDERS") {
			t.Errorf("%s: got stream %q in %v, %q", name, got, out.Header, out.Data)
		}
		if len(msg.Metadata) != 4 {
			t.Errorf("%s: the message was changed: %v", name, msg.Metadata)
		}
		msg.Metadata.Set(outbox.MetadataHeaders, "no JSON")
		if _, err := (nats.Marshaler{Marshaler: tt.inner}).Marshal("a", msg); !errors.Is(err, outbox.ErrInvalidMessage) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestUnmarshalerIgnoresHeaderRequests: requests for broker headers are removed from consumed messages, in any
// spelling.
func TestUnmarshalerIgnoresHeaderRequests(t *testing.T) {
	for _, name := range []string{"outbox_headers", "%outbox_headers"} {
		msg, err := nats.Unmarshaler{}.Unmarshal(&natsgo.Msg{
			Header: natsgo.Header{name: {`{"Nats-Rollup": "all"}`}, "other": {"kept"}},
		})
		if err != nil || len(msg.Metadata) != 1 || msg.Metadata["other"] != "kept" {
			t.Errorf("%s: %v, %v", name, msg.Metadata, err)
		}
	}
}
