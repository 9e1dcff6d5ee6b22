package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/watermill-outbox/examples/demo"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

const partitions = 4

// broker is the demo's own access to Kafka: it sends orders, reads stored messages back, and kills the server. It
// shares neither code nor the client with the library.
type broker struct {
	server *services.Kafka
	client *kgo.Client
	admin  *kadm.Client
	group  string
}

var _ demo.Broker = (*broker)(nil)

func startBroker(ctx context.Context, opts services.Options) (demo.Broker, error) {
	server, err := services.StartKafka(ctx, opts)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Brokers()...))
	if err != nil {
		return nil, err
	}
	return &broker{server: server, client: client, admin: kadm.NewClient(client)}, nil
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
	const replicas = -1 // the broker's default
	for {
		_, err := b.admin.CreateTopic(ctx, partitions, replicas, nil, topic)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) {
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
	records := make([]*kgo.Record, len(copies))
	for i, c := range copies {
		records[i] = &kgo.Record{
			Topic: topic, Key: []byte(c.Key), Value: c.Payload,
			Headers: []kgo.RecordHeader{{Key: wmkafka.UUIDHeaderKey, Value: []byte(c.UUID)}},
		}
	}
	return b.client.ProduceSync(ctx, records...).FirstErr() // the client retries on its own, without storing twice
}

func (b *broker) Consumed(ctx context.Context, topic string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ends, err := b.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return false, err
	}
	committed, err := b.admin.FetchOffsets(ctx, b.group)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return false, err
	}
	done := true
	ends.Each(func(end kadm.ListedOffset) {
		// A group that has not come back after the outage has no offset at all: that is not "no lag".
		at, ok := committed.Lookup(topic, end.Partition)
		done = done && (end.Offset == 0 || ok && at.At >= end.Offset)
	})
	return done, nil
}

func (b *broker) Read(ctx context.Context, topic string) ([]demo.Stored, error) {
	ends, err := b.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	var count int64
	starts := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		count += end.Offset
		starts[end.Partition] = kgo.NewOffset().AtStart()
	})
	reader, err := kgo.NewClient(kgo.SeedBrokers(b.server.Brokers()...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var all []demo.Stored
	for int64(len(all)) < count {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) { all = append(all, demo.Stored{UUID: uuid(r), Payload: r.Value}) })
	}
	return all, nil
}

func uuid(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == wmkafka.UUIDHeaderKey {
			return string(h.Value)
		}
	}
	return ""
}

// TakeAway kills the broker, as a crash would.
func (b *broker) TakeAway() error { return b.server.Kill() }

func (b *broker) BringBack(ctx context.Context) error { return b.server.Restart(ctx) }

func (b *broker) Close(ctx context.Context, topics ...string) {
	_, _ = b.admin.DeleteTopics(ctx, topics...)
	_, _ = b.admin.DeleteGroups(ctx, b.group)
	b.client.Close()
	_ = b.server.Close()
}
