package kafka

import (
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// TestParkedMessageIsTheSame: what an Unmarshaler, a handler and InboxConfig.Key see of a message that was parked is
// what they see of one that Kafka brought.
func TestParkedMessageIsTheSame(t *testing.T) {
	header := func(key, value string) []*sarama.RecordHeader {
		return []*sarama.RecordHeader{{Key: []byte(key), Value: []byte(value)}}
	}
	at := time.UnixMilli(1_700_000_000_123)
	for name, rec := range map[string]*sarama.ConsumerMessage{
		"plain": {
			Key: []byte("k"), Value: []byte("v"), Headers: header(wmkafka.UUIDHeaderKey, "u"), Timestamp: at,
		},
		"no UUID":                {Key: []byte("k"), Value: []byte("v"), Timestamp: at},
		"tombstone":              {Key: []byte("k"), Timestamp: at},
		"empty key and value":    {Key: []byte{}, Value: []byte{}, Timestamp: at},
		"bytes of no text":       {Key: []byte{0, 0xff}, Value: []byte{0xfe, 0}, Headers: header("\xff", "\x00\xfe")},
		"long UUID":              {Headers: header(wmkafka.UUIDHeaderKey, strings.Repeat("u", 999))},
		"a delay":                {Headers: append(header("_watermill_delayed_for", "1h"), header("outbox_key", "x")...)},
		"a header that is twice": {Headers: append(header("a", "1"), header("a", "2")...)},
		"a time of no year":      {Timestamp: time.UnixMilli(1 << 60), BlockTimestamp: at},
	} {
		rec.Topic, rec.Partition, rec.Offset = "topic", 3, 14
		bubble(t, nil, func(w *world) {
			payload, err := encode(record{msg: rec})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			decoded, err := decode(payload)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			again := decoded.msg
			if !reflect.DeepEqual(cloned(rec).Headers, again.Headers) || !reflect.DeepEqual(rec.Key, again.Key) ||
				!reflect.DeepEqual(rec.Value, again.Value) {
				t.Errorf("%s: parked %+v, want %+v", name, again, rec)
			}
			var msgs []*message.Message
			for _, r := range []*sarama.ConsumerMessage{rec, again} {
				go w.sub.hand(record{msg: r}, w.logger, nil, nil)
				synctest.Wait()
				msgs = append(msgs, w.one())
				msgs[len(msgs)-1].Ack()
			}
			direct, parked := msgs[0], msgs[1]
			if !direct.Equals(parked) {
				t.Errorf("%s: parked %+v, want %+v", name, parked, direct)
			}
			for what, of := range map[string]func(*message.Message) any{
				"partition": func(m *message.Message) any { v, _ := wmkafka.MessagePartitionFromCtx(m.Context()); return v },
				"offset":    func(m *message.Message) any { v, _ := wmkafka.MessagePartitionOffsetFromCtx(m.Context()); return v },
				"key":       func(m *message.Message) any { v, _ := wmkafka.MessageKeyFromCtx(m.Context()); return string(v) },
				"time": func(m *message.Message) any {
					v, _ := wmkafka.MessageTimestampFromCtx(m.Context())
					return v.UnixNano()
				},
			} {
				if of(direct) != of(parked) {
					t.Errorf("%s: %s is %v, want %v", name, what, of(parked), of(direct))
				}
			}
			if parkedUUID("g", rec) != parkedUUID("g", again) || parkedUUID("g", rec) == parkedUUID("h", rec) {
				t.Errorf("%s: the row does not follow from group and offset", name)
			}
		})
	}
}

// TestParkedKey: what the outbox cannot store as a key is hashed; no two partitions share one.
func TestParkedKey(t *testing.T) {
	seen := map[string]string{}
	for _, key := range []string{"k", "K", "\x00", "\xff", strings.Repeat("k", 1025), strings.Repeat("k", 1026)} {
		for _, partition := range []int32{1, 11} {
			row := parkedKey(partition, key)
			if len(row) > 1024 || strings.ToValidUTF8(row, "") != row || strings.Contains(row, "\x00") {
				t.Errorf("%q is parked as %q", key, row)
			}
			if other, twice := seen[row]; twice {
				t.Errorf("%q and %q are both parked as %q", key, other, row)
			}
			seen[row] = key
			if of := parkedOf(partition, map[string]pile{row: {}}); len(of) != 1 {
				t.Errorf("%q is not of partition %d", row, partition)
			}
			if of := parkedOf(partition+10, map[string]pile{row: {}}); len(of) != 0 {
				t.Errorf("%q is of partition %d", row, partition+10)
			}
		}
	}
	if parkedKey(1, "") != "" {
		t.Error("a message without key has one")
	}
}
