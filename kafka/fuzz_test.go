package kafka_test

import (
	"testing"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/kafka"
)

// FuzzMarshaler: a consumer reads exactly the published message, whatever its names, values and bytes.
func FuzzMarshaler(f *testing.F) {
	f.Add("u", "order/1", "tenant", "acme", []byte("{}"))
	f.Add("", "", "", "", []byte(nil))
	f.Add("u", "\x00", wmkafka.UUIDHeaderKey, "another", []byte{0xff})
	f.Add("u", "k", "%tenant", "\xff", []byte{})
	f.Add("u", "k", outbox.MetadataHeaders, "{}", []byte{})
	f.Fuzz(func(t *testing.T, uuid, key, name, value string, payload []byte) {
		msg := message.NewMessage(uuid, payload)
		msg.Metadata.Set(name, value)
		outbox.SetKey(msg, key)
		out, err := kafka.Marshaler{}.Marshal("topic", msg)
		if err != nil {
			t.Fatal(err)
		}
		in := &sarama.ConsumerMessage{Topic: out.Topic}
		if in.Value, err = out.Value.Encode(); err != nil {
			t.Fatal(err)
		}
		if key := msg.Metadata.Get(outbox.MetadataKey); (out.Key == nil) != (key == "") {
			t.Errorf("key %q is sent as %v", key, out.Key)
		}
		for i := range out.Headers {
			in.Headers = append(in.Headers, &out.Headers[i])
		}
		got, err := kafka.Unmarshaler{}.Unmarshal(in)
		if err != nil {
			t.Fatal(err)
		}
		want := msg.Copy()
		delete(want.Metadata, outbox.MetadataHeaders)
		if !got.Equals(want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
