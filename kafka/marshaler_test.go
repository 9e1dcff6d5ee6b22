package kafka_test

import (
	"errors"
	"testing"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/kafka"
)

func TestMarshalerKey(t *testing.T) {
	fixed := func(key string) wmkafka.Marshaler {
		return wmkafka.NewWithPartitioningMarshaler(func(string, *message.Message) (string, error) { return key, nil })
	}
	tests := map[string]struct {
		inner wmkafka.Marshaler
		key   string
		want  string // "" is nil
	}{
		"no key stays nil": {},
		"outbox key":       {key: "order/1", want: "order/1"},
		"an empty key of the wrapped marshaler is nil": {inner: fixed("")},
		"the outbox key replaces an empty key":         {inner: fixed(""), key: "order/1", want: "order/1"},
		"a key of the wrapped marshaler stays":         {inner: fixed("tenant"), key: "order/1", want: "tenant"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("uuid", nil)
			if tt.key != "" {
				outbox.SetKey(msg, tt.key)
			}
			out, err := kafka.Marshaler{Marshaler: tt.inner}.Marshal("topic", msg)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" {
				if out.Key != nil {
					t.Fatalf("key %#v, want nil: sarama hashes an empty key", out.Key)
				}
				return
			}
			got, err := out.Key.Encode()
			if err != nil || string(got) != tt.want {
				t.Fatalf("key %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestMarshalerIsReadByWatermillKafka(t *testing.T) {
	msg := message.NewMessage("the-uuid", []byte{0, 1, 0xff})
	msg.Metadata.Set("tenant", "acme")
	outbox.SetKey(msg, "order/1")

	out, err := kafka.Marshaler{}.Marshal("topic", msg)
	if err != nil {
		t.Fatal(err)
	}
	in := &sarama.ConsumerMessage{Topic: out.Topic}
	if in.Value, err = out.Value.Encode(); err != nil {
		t.Fatal(err)
	}
	for i := range out.Headers {
		in.Headers = append(in.Headers, &out.Headers[i])
	}
	got, err := wmkafka.DefaultMarshaler{}.Unmarshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Equals(msg) {
		t.Fatalf("got %s %v %q, want %s %v %q", got.UUID, got.Metadata, got.Payload, msg.UUID, msg.Metadata, msg.Payload)
	}
}

type failingMarshaler struct{ err error }

func (m failingMarshaler) Marshal(string, *message.Message) (*sarama.ProducerMessage, error) {
	return nil, m.err
}

func TestMarshalerPassesErrorsOn(t *testing.T) {
	want := errors.New("no schema")
	_, err := kafka.Marshaler{Marshaler: failingMarshaler{want}}.Marshal("topic", message.NewMessage("uuid", nil))
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// The UUID's header would exist twice, and the consumer would use the wrong one.
func TestMarshalerKeepsTheUUID(t *testing.T) {
	for _, value := range []string{"another", ""} {
		msg := message.NewMessage("uuid", []byte("payload"))
		msg.Metadata = message.Metadata{wmkafka.UUIDHeaderKey: value, "%a": "b", "c": "d"}
		request := msg.Copy()
		request.Metadata.Set(outbox.MetadataHeaders, `{"Nats-Rollup":"all"}`)
		out, err := kafka.Marshaler{}.Marshal("topic", request)
		if err != nil {
			t.Fatal(err)
		}
		in := &sarama.ConsumerMessage{}
		in.Value, _ = out.Value.Encode()
		for i := range out.Headers {
			in.Headers = append(in.Headers, &out.Headers[i])
		}
		plain, err := wmkafka.DefaultMarshaler{}.Unmarshal(in)
		if err != nil || plain.UUID != "uuid" || len(plain.Metadata) != 3 {
			t.Errorf("%q: got %v, %v", value, plain, err)
		}
		if got, err := (kafka.Unmarshaler{}).Unmarshal(in); err != nil || !got.Equals(msg) {
			t.Errorf("%q: got %v, %v", value, got, err)
		}
	}
}

// TestUnmarshalerIgnoresHeaderRequests: requests for broker headers are removed from consumed messages, in any
// spelling.
func TestUnmarshalerIgnoresHeaderRequests(t *testing.T) {
	for _, name := range []string{"outbox_headers", "%outbox_headers"} {
		msg, err := kafka.Unmarshaler{}.Unmarshal(&sarama.ConsumerMessage{Headers: []*sarama.RecordHeader{
			{Key: []byte(name), Value: []byte(`{"Nats-Rollup": "all"}`)}, {Key: []byte("other"), Value: []byte("kept")},
		}})
		if err != nil || len(msg.Metadata) != 1 || msg.Metadata["other"] != "kept" {
			t.Errorf("%s: %v, %v", name, msg.Metadata, err)
		}
	}
}
