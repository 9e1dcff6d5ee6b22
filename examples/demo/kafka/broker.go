package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/millrace-go/watermill-outbox/examples/demo"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

const partitions = 4

// broker is the demo's own access to Kafka: it sends orders, reads stored messages back, and kills the server. It
// shares no code with the library.
type broker struct {
	server   *services.Kafka
	client   sarama.Client
	admin    sarama.ClusterAdmin
	producer sarama.SyncProducer
	group    string
}

var _ demo.Broker = (*broker)(nil)

func startBroker(ctx context.Context, opts services.Options) (demo.Broker, error) {
	server, err := services.StartKafka(ctx, opts)
	if err != nil {
		return nil, err
	}
	b := &broker{server: server}
	if b.client, err = sarama.NewClient(server.Brokers(), settings()); err != nil {
		return nil, err
	}
	if b.admin, err = sarama.NewClusterAdminFromClient(b.client); err != nil {
		return nil, err
	}
	if b.producer, err = sarama.NewSyncProducerFromClient(b.client); err != nil {
		return nil, err
	}
	return b, nil
}

// settings makes the producer retry throughout the outage without storing a message twice.
func settings() *sarama.Config {
	c := sarama.NewConfig()
	c.Net.DialTimeout, c.Net.ReadTimeout, c.Net.WriteTimeout = 5*time.Second, 5*time.Second, 5*time.Second
	c.Net.MaxOpenRequests = 1 // an idempotent producer needs that
	c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 1200, 100*time.Millisecond
	c.Producer.Idempotent, c.Producer.RequiredAcks = true, sarama.WaitForAll
	c.Producer.Retry.Max = 100
	c.Producer.Return.Successes = true
	c.Consumer.Return.Errors = true
	return c
}

func (b *broker) Address() string { return strings.Join(b.server.Brokers(), ",") }

// Provision makes the topics. Kafka creates the consumer group on its own.
func (b *broker) Provision(ctx context.Context, at demo.Addresses) error {
	b.group = at.Consumer
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, topic := range []string{at.Orders, at.Bookings} {
		if err := b.createTopic(ctx, topic); err != nil {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	return nil
}

// createTopic tries until it succeeds: a broker that has just started may report for a while that no broker is
// available.
func (b *broker) createTopic(ctx context.Context, topic string) error {
	for {
		err := b.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
		if err == nil || errors.Is(err, sarama.ErrTopicAlreadyExists) {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b *broker) Send(ctx context.Context, topic string, copies []demo.Copy) error {
	records := make([]*sarama.ProducerMessage, len(copies))
	for i, c := range copies {
		records[i] = &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(c.Key), Value: sarama.ByteEncoder(c.Payload),
			Headers: []sarama.RecordHeader{{Key: []byte(wmkafka.UUIDHeaderKey), Value: []byte(c.UUID)}},
		}
	}
	sent := make(chan error, 1)
	go func() { sent <- b.producer.SendMessages(records) }()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *broker) Consumed(_ context.Context, topic string) (bool, error) {
	ends, err := b.ends(topic)
	if err != nil {
		return false, err
	}
	all := make([]int32, 0, len(ends))
	for partition := range ends {
		all = append(all, partition)
	}
	committed, err := b.admin.ListConsumerGroupOffsets(b.group, map[string][]int32{topic: all})
	if err != nil {
		return false, err
	}
	for partition, end := range ends {
		// A group that has not come back after the outage has no offset at all: that is not "no lag".
		at := committed.GetBlock(topic, partition)
		if at != nil && at.Err != sarama.ErrNoError {
			return false, at.Err
		}
		if end > 0 && (at == nil || at.Offset < end) {
			return false, nil
		}
	}
	return true, nil
}

// ends returns the offset after the last message of each partition.
func (b *broker) ends(topic string) (map[int32]int64, error) {
	ends := map[int32]int64{}
	for partition := range int32(partitions) {
		end, err := b.client.GetOffset(topic, partition, sarama.OffsetNewest)
		if err != nil {
			return nil, err
		}
		ends[partition] = end
	}
	return ends, nil
}

func (b *broker) Read(ctx context.Context, topic string) ([]demo.Stored, error) {
	ends, err := b.ends(topic)
	if err != nil {
		return nil, err
	}
	consumer, err := sarama.NewConsumerFromClient(b.client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var all []demo.Stored
	for partition, end := range ends {
		stored, err := readPartition(ctx, consumer, topic, partition, end)
		if err != nil {
			return nil, err
		}
		all = append(all, stored...)
	}
	return all, nil
}

func readPartition(
	ctx context.Context, consumer sarama.Consumer, topic string, partition int32, end int64,
) ([]demo.Stored, error) {
	reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var all []demo.Stored
	for int64(len(all)) < end {
		select {
		case msg := <-reader.Messages():
			all = append(all, demo.Stored{UUID: uuid(msg), Payload: msg.Value})
		case err := <-reader.Errors():
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return all, nil
}

func uuid(msg *sarama.ConsumerMessage) string {
	for _, h := range msg.Headers {
		if string(h.Key) == wmkafka.UUIDHeaderKey {
			return string(h.Value)
		}
	}
	return ""
}

// TakeAway kills the broker, as a crash would.
func (b *broker) TakeAway() error { return b.server.Kill() }

func (b *broker) BringBack(ctx context.Context) error { return b.server.Restart(ctx) }

// Close does not close the producer, which would first wait for a broker that may be gone.
func (b *broker) Close() {
	_ = b.admin.Close() // closes the client too
	_ = b.server.Close()
}
