package amqp_test

import (
	"maps"
	"testing"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/watermill-outbox/amqp"
)

// TestHeadersThatAreNotStrings: RabbitMQ itself adds such headers, and watermill-amqp rejects messages that have one.
func TestHeadersThatAreNotStrings(t *testing.T) {
	delivery := amqp091.Delivery{Body: []byte("4711"), Headers: amqp091.Table{
		"_watermill_message_uuid": "the UUID", "tenant": "t1", "x-delivery-count": int64(3), "x-death": []any{
			amqp091.Table{"queue": "orders", "reason": "rejected", "count": int64(1)},
		}, "x-origin": amqp091.Table{"cluster": "a"}, "nothing": nil, "urgent": true, "weight": 1.5, "raw": []byte("bytes"),
		"price": amqp091.Decimal{Scale: 2, Value: 1999}, "at": time.Date(2026, 7, 1, 12, 30, 0, 0, time.UTC),
	}}
	want := message.Metadata{
		"tenant": "t1", "x-delivery-count": "3", "urgent": "true", "weight": "1.5", "raw": "bytes", "price": "1999e-2",
		"at": "2026-07-01T12:30:00Z",
	}
	for _, marshaler := range []wmamqp.Marshaler{
		amqp.Marshaler{}, amqp.CloudEvents{},
		amqp.Marshaler{Marshaler: wmamqp.DefaultMarshaler{NotPersistentDeliveryMode: true}},
	} {
		got, err := marshaler.Unmarshal(delivery)
		if err != nil {
			t.Errorf("%T: %v", marshaler, err)
		} else if got.UUID != "the UUID" || !maps.Equal(got.Metadata, want) {
			t.Errorf("%T: got %q %q, want %q", marshaler, got.UUID, got.Metadata, want)
		}
	}
	if _, found := delivery.Headers["x-death"]; !found {
		t.Error("the delivery's headers changed")
	}
}

// TestCloudEventWithDeath: an event with typed attributes that was dead-lettered once.
func TestCloudEventWithDeath(t *testing.T) {
	got, err := amqp.CloudEvents{}.Unmarshal(amqp091.Delivery{ContentType: "text/plain", Headers: amqp091.Table{
		"cloudEvents:specversion": "1.0", "cloudEvents:id": "1", "cloudEvents:type": "Shipped",
		"cloudEvents:time": time.Date(2026, 7, 1, 12, 30, 0, 0, time.UTC), "cloudEvents:sequence": int32(7),
		"x-death": []any{amqp091.Table{"count": int64(1)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if want := (message.Metadata{
		"event_type": "Shipped", "occurred_at": "2026-07-01T12:30:00Z", "ce_sequence": "7", "content-type": "text/plain",
	}); got.UUID != "1" || !maps.Equal(got.Metadata, want) {
		t.Errorf("got %q %q, want %q", got.UUID, got.Metadata, want)
	}
}
