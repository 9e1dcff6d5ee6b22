package kafka

import (
	"context"
	"errors"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
)

// pauser is the part of sarama.ConsumerGroup that a partition needs.
type pauser interface {
	Pause(partitions map[string][]int32)
	Resume(partitions map[string][]int32)
}

// member is one membership in the consumer group, from join to leave.
type member struct {
	*subscription
	group      pauser
	joined     func()
	committed  func(topic string, partition int32) (int64, error)
	lastOffset func(topic string, partition int32, time int64) (int64, error) // nil = not requested
	// markers returns the first offset at or after from that may have a message; nil = never requested.
	markers    func(ctx context.Context, topic string, partition int32, from int64) (int64, error)
	requesting sync.WaitGroup
}

// Setup is part of sarama.ConsumerGroupHandler.
func (m *member) Setup(sarama.ConsumerGroupSession) error {
	m.joined()
	return nil
}

// Cleanup is part of sarama.ConsumerGroupHandler.
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim is part of sarama.ConsumerGroupHandler. It returns only when the partition is revoked or the session
// ends; returning earlier would end the session.
func (m *member) ConsumeClaim(sess sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	newPartition(m, sess, claim).run()
	return nil
}

// logError logs errors from sarama once a minute: while a broker is down there are many per second.
func (s *subscription) logError(err error) {
	switch {
	case errors.Is(err, sarama.ErrOffsetOutOfRange):
		// Cause: the topic's retention is shorter than the backlog.
		// Cure: raise retention.ms or retention.bytes; only the producer still has the messages.
		s.logger.Error("messages were deleted before they were read: reading continues from "+
			"Consumer.Offsets.Initial: raise the retention of the topic", err, nil)
	case s.lines.Allow("sarama"):
		// Cause: a broker is unreachable, or refuses a request.
		// Cure: the client rejoins the group.
		s.logger.Error("kafka client reports an error: it is retried until it works", err, nil)
	default:
		s.logger.Debug("kafka client reports an error", watermill.LogFields{"err": err.Error()})
	}
}

// committedOffset returns a function that reads the group's committed offset; -1 = none.
func committedOffset(client sarama.Client, group string) func(string, int32) (int64, error) {
	return func(topic string, partition int32) (int64, error) {
		broker, err := client.Coordinator(group)
		if err != nil {
			return 0, err
		}
		request := sarama.NewOffsetFetchRequest(client.Config().Version, group, map[string][]int32{topic: {partition}})
		response, err := broker.FetchOffset(request)
		if err != nil {
			return 0, err
		}
		block := response.GetBlock(topic, partition)
		switch {
		case block == nil && response.Err != sarama.ErrNoError:
			return 0, response.Err
		case block == nil:
			return 0, sarama.ErrIncompleteResponse
		case block.Err != sarama.ErrNoError:
			return 0, block.Err
		}
		return block.Offset, nil
	}
}
