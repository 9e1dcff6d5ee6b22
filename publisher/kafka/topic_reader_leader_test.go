package kafka_test

import (
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/publisher/kafka"
)

// clusterAsSeenBy has brokers of which the first is the leader that it was before it was cut off, and the others have
// another one.
func clusterAsSeenBy(t *testing.T, topic string) (brokers []*sarama.MockBroker) {
	t.Helper()
	for id := range int32(3) {
		brokers = append(brokers, sarama.NewMockBroker(t, id))
	}
	for i, b := range brokers {
		leader := int32(min(i, 1)) //nolint:gosec // one of three
		metadata := &sarama.MetadataResponse{Version: 7}
		for _, b := range brokers {
			metadata.AddBroker(b.Addr(), b.BrokerID())
		}
		metadata.AddTopicPartition(topic, 0, leader, nil, nil, nil, sarama.ErrNoError)
		metadata.Topics[0].Partitions[0].LeaderEpoch = 5 + leader
		b.SetHandlerByMap(map[string]sarama.MockResponse{
			"ApiVersionsRequest": sarama.NewMockApiVersionsResponse(t).SetApiKeys([]sarama.ApiVersionsResponseKey{
				{ApiKey: 2, MaxVersion: 5}, // ListOffsets
				{ApiKey: 3, MaxVersion: 7}, // Metadata
			}),
			"MetadataRequest": sarama.NewMockWrapper(metadata),
			"OffsetRequest": sarama.NewMockOffsetResponse(t).
				SetOffset(topic, 0, sarama.OffsetOldest, 0).SetOffset(topic, 0, sarama.OffsetNewest, 0),
		})
	}
	return brokers
}

// TestTopicReaderAsksTheNewestLeader: one that was deposed while it was frozen does not know what its successor has
// taken.
func TestTopicReaderAsksTheNewestLeader(t *testing.T) {
	t.Parallel()
	const topic = "orders"
	brokers := clusterAsSeenBy(t, topic)
	reader, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: []string{brokers[0].Addr()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	read := func() error {
		return reader.Messages(t.Context(), topic, func(*message.Message, time.Time) error { return nil })
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	for i, b := range brokers {
		asked := 0
		for _, r := range b.History() {
			if _, of := r.Request.(*sarama.OffsetRequest); of {
				asked++
			}
		}
		if want := []int{0, 2, 0}[i]; asked != want {
			t.Errorf("broker %d was asked %d times for offsets, want %d", i, asked, want)
		}
	}

	brokers[1].Close()
	brokers[2].Close()
	defer brokers[0].Close()
	if err := read(); err == nil || !strings.Contains(err.Error(), "1 of 3 brokers answer") {
		t.Errorf("with one broker: %v", err)
	}
}
