package main

import (
	"context"
	"errors"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/kafka"
)

const kafkaPartitions = 4

type kafkaBroker struct {
	kafka  *services.Kafka
	client sarama.Client
	admin  sarama.ClusterAdmin
}

func (b *bench) startKafka(ctx context.Context) (broker, error) {
	k, err := services.StartKafka(ctx, services.Options{})
	if err != nil {
		return nil, err
	}
	client, err := sarama.NewClient(k.Brokers(), sarama.NewConfig())
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, errors.Join(err, client.Close(), k.Close())
	}
	return &kafkaBroker{k, client, admin}, nil
}

func (k *kafkaBroker) publisher() (message.Publisher, error) {
	return kafka.NewPublisher(kafka.PublisherConfig{Brokers: k.kafka.Brokers()}, nil)
}

func (k *kafkaBroker) create(topic string) error {
	return k.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: kafkaPartitions, ReplicationFactor: 1}, false)
}

func (k *kafkaBroker) stored(topic string) (int, error) {
	if err := k.client.RefreshMetadata(topic); err != nil {
		return 0, err
	}
	total := 0
	for p := range int32(kafkaPartitions) {
		end, err := k.client.GetOffset(topic, p, sarama.OffsetNewest)
		if err != nil {
			return 0, err
		}
		total += int(end)
	}
	return total, nil
}

func (k *kafkaBroker) remove(topic string) { _ = k.admin.DeleteTopic(topic) }

func (k *kafkaBroker) close() {
	_ = k.admin.Close() // closes its client too
	_ = k.kafka.Close()
}
