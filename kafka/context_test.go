package kafka

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
)

type otherKey struct{}

// TestContextValues fails if watermill-kafka changes how it reads contexts.
func TestContextValues(t *testing.T) {
	now := time.Now()
	around := context.WithValue(t.Context(), otherKey{}, "around")
	record := &sarama.ConsumerMessage{Partition: 3, Offset: 9, Timestamp: now, Key: []byte("k")}
	ctx, cancel := context.WithCancel(recordContext{around, record})
	defer cancel()
	partition, ok := wmkafka.MessagePartitionFromCtx(ctx)
	if !ok || partition != 3 {
		t.Errorf("partition %d %t", partition, ok)
	}
	offset, ok := wmkafka.MessagePartitionOffsetFromCtx(ctx)
	if !ok || offset != 9 {
		t.Errorf("offset %d %t", offset, ok)
	}
	timestamp, ok := wmkafka.MessageTimestampFromCtx(ctx)
	if !ok || !timestamp.Equal(now) {
		t.Errorf("timestamp %s %t", timestamp, ok)
	}
	key, ok := wmkafka.MessageKeyFromCtx(ctx)
	if !ok || string(key) != "k" {
		t.Errorf("key %q %t", key, ok)
	}
	if ctx.Value(otherKey{}) != "around" || ctx.Value("unknown") != nil {
		t.Error("other values come from the parent context")
	}
}
