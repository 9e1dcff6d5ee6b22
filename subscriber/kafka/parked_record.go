package kafka

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/google/uuid"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// parkedRecord is a Kafka record as a payload. The message is made of it at delivery, by the Unmarshaler, so that it is
// the one that Kafka would have brought, with the same identity. What the outbox refuses or reads as an instruction in
// a message, such as the metadata of a delay, is only bytes here.
type parkedRecord struct {
	Topic          string         `json:"topic"`
	Partition      int32          `json:"partition"`
	Offset         int64          `json:"offset"`
	Timestamp      instant        `json:"timestamp"`
	BlockTimestamp instant        `json:"block_timestamp"`
	Key            []byte         `json:"key"` // null is not empty
	Value          []byte         `json:"value"`
	Headers        []parkedHeader `json:"headers"`
	NotBefore      *instant       `json:"not_before,omitempty"` // when its handler wants it again
}

type parkedHeader struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// instant is a time of any year: producers may write what JSON's times cannot say.
type instant struct {
	Seconds     int64 `json:"s"`
	Nanoseconds int64 `json:"ns"`
}

func instantOf(t time.Time) instant { return instant{t.Unix(), int64(t.Nanosecond())} }
func (i instant) time() time.Time   { return time.Unix(i.Seconds, i.Nanoseconds) }

func encode(r record) ([]byte, error) {
	msg := r.msg
	rec := parkedRecord{
		Topic: msg.Topic, Partition: msg.Partition, Offset: msg.Offset,
		Timestamp: instantOf(msg.Timestamp), BlockTimestamp: instantOf(msg.BlockTimestamp), Key: msg.Key, Value: msg.Value,
	}
	for _, h := range msg.Headers {
		if h != nil {
			rec.Headers = append(rec.Headers, parkedHeader{h.Key, h.Value})
		}
	}
	if !r.notBefore.IsZero() {
		at := instantOf(r.notBefore)
		rec.NotBefore = &at
	}
	return json.Marshal(rec)
}

func decode(payload []byte) (r record, err error) {
	var rec parkedRecord
	if err := json.Unmarshal(payload, &rec); err != nil {
		return r, err
	}
	msg := &sarama.ConsumerMessage{
		Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset,
		Timestamp: rec.Timestamp.time(), BlockTimestamp: rec.BlockTimestamp.time(), Key: rec.Key, Value: rec.Value,
	}
	for _, h := range rec.Headers {
		msg.Headers = append(msg.Headers, &sarama.RecordHeader{Key: h.Key, Value: h.Value})
	}
	r = record{msg: msg, own: true}
	if rec.NotBefore != nil {
		r.notBefore = rec.NotBefore.time()
	}
	return r, nil
}

// parkedUUID is the same in each process that parks the record.
func parkedUUID(group string, msg *sarama.ConsumerMessage) string {
	name := fmt.Sprintf("%s/%s/%d/%d", group, msg.Topic, msg.Partition, msg.Offset)
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String()
}

// parkedKey is the ordering key of a row: order is kept within a partition. What the outbox cannot store is hashed; two
// keys that are the same then only wait for each other. It is empty for a message that waits for no other.
func parkedKey(partition int32, key string) string {
	if key == "" {
		return ""
	}
	prefix := strconv.Itoa(int(partition)) + "/"
	if len(prefix)+len(key) > outbox.MaxKeyBytes || !text.Storable(key) {
		sum := sha256.Sum256([]byte(key))
		return prefix + "sha256:" + hex.EncodeToString(sum[:])
	}
	return prefix + key
}
