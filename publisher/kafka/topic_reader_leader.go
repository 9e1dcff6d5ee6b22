package kafka

import (
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
)

// leaders is what all brokers have said of a topic. They are asked once, and again when something has failed.
type leaders struct {
	answers []*sarama.TopicMetadata
	asked   int // 0 = nobody yet
}

// findLeader finds the leader of the partition: of those that the brokers name, the one of the latest epoch. One that
// was frozen, or is cut off from the others, takes itself for the leader until it hears of the next one, and has
// nothing of what that one has taken.
func (r *partitionReader) findLeader() error {
	if r.leaders.asked == 0 {
		r.leaders.answers, r.leaders.asked = askAll(r.client, r.topic)
	}
	var newest *sarama.PartitionMetadata
	answered, asked := 0, r.leaders.asked
	for _, t := range r.leaders.answers {
		i := slices.IndexFunc(t.Partitions, func(p *sarama.PartitionMetadata) bool { return p.ID == r.partition })
		if i < 0 {
			continue
		}
		answered++
		if p := t.Partitions[i]; newest == nil || p.LeaderEpoch > newest.LeaderEpoch {
			newest = p
		}
	}
	switch {
	case 2*answered <= asked:
		return fmt.Errorf("%d of %d brokers answer, which are too few to tell which one leads partition %d", answered, asked,
			r.partition)
	case newest.Leader < 0:
		return sarama.ErrLeaderNotAvailable
	}
	leader, err := r.client.Broker(newest.Leader)
	if err != nil {
		return err
	}
	r.leader, r.epoch = leader, newest.LeaderEpoch
	return nil
}

// askAll asks all brokers about a topic, and returns the answers and of how many. Connections that are dead are closed.
func askAll(client sarama.Client, topic string) (answers []*sarama.TopicMetadata, asked int) {
	all := client.Brokers()
	said := make(chan *sarama.TopicMetadata, len(all))
	for _, b := range all {
		go func() { said <- askOne(client, b, topic) }()
	}
	for range all {
		if t := <-said; t != nil {
			answers = append(answers, t)
		}
	}
	return answers, len(all)
}

// askOne returns nil if the broker does not answer.
func askOne(client sarama.Client, b *sarama.Broker, topic string) *sarama.TopicMetadata {
	if err := b.Open(client.Config()); err != nil && !errors.Is(err, sarama.ErrAlreadyConnected) {
		return nil
	}
	metadata, err := b.GetMetadata(sarama.NewMetadataRequest(sarama.V2_1_0_0, []string{topic}))
	if err != nil {
		_ = b.Close() // it opens anew
		return nil
	}
	for _, t := range metadata.Topics {
		if t.Name == topic {
			return t
		}
	}
	return nil
}

// offset returns that of the first message at or after a time in milliseconds, below 0 if there is none, or what
// sarama.OffsetOldest and OffsetNewest stand for.
func (r *partitionReader) offset(at int64) (int64, error) {
	request := &sarama.OffsetRequest{Version: 4}
	request.AddBlock(r.topic, r.partition, at, 1)
	response, err := r.leader.GetAvailableOffsets(request)
	if err != nil {
		_ = r.leader.Close() // it opens anew
		return 0, err
	}
	block := response.GetBlock(r.topic, r.partition)
	if block == nil {
		return 0, sarama.ErrIncompleteResponse
	}
	if block.Err != sarama.ErrNoError {
		return 0, block.Err
	}
	return block.Offset, nil
}
