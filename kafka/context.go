package kafka

import (
	"context"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
)

// watermill-kafka does not export the keys of its context values, but its functions look them up in a context.
var (
	partitionKey = keyOf(func(ctx context.Context) { wmkafka.MessagePartitionFromCtx(ctx) })
	offsetKey    = keyOf(func(ctx context.Context) { wmkafka.MessagePartitionOffsetFromCtx(ctx) })
	timestampKey = keyOf(func(ctx context.Context) { wmkafka.MessageTimestampFromCtx(ctx) })
	keyKey       = keyOf(func(ctx context.Context) { wmkafka.MessageKeyFromCtx(ctx) })
)

// spy is a context that records which keys are looked up.
type spy struct {
	context.Context
	key any
}

// Value is part of context.Context.
func (s *spy) Value(key any) any {
	s.key = key
	return nil
}

func keyOf(get func(context.Context)) any {
	s := &spy{Context: context.Background()}
	get(s)
	return s.key
}

// recordContext has the values that watermill-kafka's subscriber adds to the context of a message.
type recordContext struct {
	context.Context
	record *sarama.ConsumerMessage
}

// Value is part of context.Context.
func (c recordContext) Value(key any) any {
	switch key {
	case nil:
	case partitionKey:
		return c.record.Partition
	case offsetKey:
		return c.record.Offset
	case timestampKey:
		return c.record.Timestamp
	case keyKey:
		return c.record.Key
	}
	return c.Context.Value(key)
}
