package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/kafka"
)

// recordOf returns a message's record as a consumer receives it.
func recordOf(t *testing.T, m wmkafka.Marshaler, msg *message.Message) *sarama.ConsumerMessage {
	t.Helper()
	sent, err := m.Marshal("orders", msg)
	if err != nil {
		t.Fatal(err)
	}
	record := &sarama.ConsumerMessage{Topic: "orders"}
	if sent.Key != nil {
		record.Key, _ = sent.Key.Encode()
	}
	if sent.Value != nil {
		record.Value, _ = sent.Value.Encode()
	}
	for _, h := range sent.Headers {
		record.Headers = append(record.Headers, &sarama.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return record
}

// TestKeyWithoutOutbox: a message published directly to Kafka has the same record key as through the outbox.
func TestKeyWithoutOutbox(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u", nil)
	outbox.SetAggregate(msg, "order", "1")
	if key := string(recordOf(t, kafka.Marshaler{}, msg).Key); key != "order/1" {
		t.Errorf("the record key is %q", key)
	}
	outbox.SetKey(msg, "")
	if key := recordOf(t, kafka.Marshaler{}, msg).Key; key != nil {
		t.Errorf("without order the record key is %q", key)
	}
	half := message.NewMessage("u", nil)
	half.Metadata.Set(outbox.MetadataAggregateID, "1")
	if _, err := (kafka.Marshaler{}).Marshal("orders", half); !errors.Is(err, outbox.ErrInvalidMessage) {
		t.Errorf("half an aggregate: %v", err)
	}
}

// TestForeignKey: the key of another producer's record is the ordering key, and the record key when the message is
// published again.
func TestForeignKey(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"customer-7", "\x00\x00\x00\x2a", "\xff\xfe", "%41", " ", ""} {
		record := &sarama.ConsumerMessage{Topic: "orders", Value: []byte("{}")}
		if key != "" {
			record.Key = []byte(key)
		}
		msg, err := kafka.Unmarshaler{}.Unmarshal(record)
		if err != nil {
			t.Fatal(err)
		}
		if stored := msg.Metadata[outbox.MetadataKey]; strings.ContainsRune(stored, 0) {
			t.Errorf("%q cannot be stored", stored)
		}
		if again := recordOf(t, kafka.Marshaler{}, msg); string(again.Key) != key || (again.Key == nil) != (key == "") {
			t.Errorf("%q was published again as %q", key, again.Key)
		}
	}
}

// TestMarshalerThatSetsKeys: the forwarder does not keep the order of keys that the outbox did not store, so such a
// message is refused.
func TestMarshalerThatSetsKeys(t *testing.T) {
	t.Parallel()
	m := kafka.Marshaler{Marshaler: wmkafka.NewWithPartitioningMarshaler(
		func(string, *message.Message) (string, error) { return "customer", nil })}
	stored := func(key string) *message.Message {
		msg := message.NewMessage("u", nil)
		if key != "" {
			outbox.SetKey(msg, key)
		}
		msg.SetContext(core.WithDelivery(context.Background(), msg, core.Delivery{Topic: "orders", Key: key}))
		return msg
	}
	_, err := m.Marshal("orders", stored(""))
	if err == nil || !strings.Contains(err.Error(), "outbox.PublisherConfig.Key") {
		t.Errorf("the error names no cure: %v", err)
	}
	if got := kafka.Classify(fmt.Errorf("publish: %w", err)); got != forwarder.Unavailable {
		t.Errorf("the verdict is %s: the message must wait", got)
	}
	if _, err := m.Marshal("orders", stored("order/1")); err != nil {
		t.Errorf("with an outbox key: %v", err)
	}
	if _, err := m.Marshal("orders", message.NewMessage("u", nil)); err != nil {
		t.Errorf("without an outbox: %v", err)
	}
}

// TestNullAndEmpty: a tombstone stays a tombstone, and an empty payload does not become one.
func TestNullAndEmpty(t *testing.T) {
	t.Parallel()
	for _, payload := range [][]byte{nil, {}} {
		record := recordOf(t, kafka.Marshaler{}, message.NewMessage("u", payload))
		msg, err := kafka.Unmarshaler{}.Unmarshal(record)
		if err != nil {
			t.Fatal(err)
		}
		if (record.Value == nil) != (payload == nil) || (msg.Payload == nil) != (payload == nil) {
			t.Errorf("%#v became the value %#v and the payload %#v", payload, record.Value, msg.Payload)
		}
	}
}
