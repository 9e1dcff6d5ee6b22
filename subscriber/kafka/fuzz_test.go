package kafka

import (
	"bytes"
	"testing"

	"github.com/IBM/sarama"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// FuzzParkedRecord: a record that is parked is the one that Kafka brought, byte by byte, under a key that the outbox
// can store; and a row that somebody has changed is an error at most.
func FuzzParkedRecord(f *testing.F) {
	f.Add([]byte("k"), []byte("v"), []byte("h"), []byte("1"), int32(3), int64(14), int64(0), int64(1))
	f.Add([]byte(nil), []byte(nil), []byte(nil), []byte(nil), int32(-1), int64(-1), int64(-1<<63), int64(-1))
	f.Add([]byte("\x00\xff"), []byte(`{"timestamp":{"s":1}}`), []byte("\xff"), []byte{}, int32(0), int64(0), int64(1<<60),
		int64(1<<60))
	f.Fuzz(func(t *testing.T, key, value, name, content []byte, partition int32, offset, seconds, nanos int64) {
		_, _ = decode(value)
		rec := &sarama.ConsumerMessage{
			Topic: "orders", Partition: partition, Offset: offset, Key: key, Value: value,
			Timestamp: instant{seconds, nanos}.time(), Headers: []*sarama.RecordHeader{{Key: name, Value: content}},
		}
		payload, err := encode(record{msg: rec})
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		got := decoded.msg
		same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
		if !same(got.Key, key) || !same(got.Value, value) || !same(got.Headers[0].Key, name) ||
			!same(got.Headers[0].Value, content) || got.Partition != partition || got.Offset != offset ||
			!got.Timestamp.Equal(rec.Timestamp) {
			t.Errorf("parked %+v, want %+v", got, rec)
		}
		parked := parkedKey(partition, string(key))
		if !text.Storable(parked) || len(parked) > outbox.MaxKeyBytes || (parked == "") != (len(key) == 0) {
			t.Errorf("key %q is parked as %q", key, parked)
		}
	})
}
