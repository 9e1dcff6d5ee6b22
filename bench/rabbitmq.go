package main

import (
	"context"
	"errors"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/millrace-go/watermill-outbox/amqp"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

type rabbitMQ struct {
	server  *services.RabbitMQ
	conn    *amqp091.Connection
	channel *amqp091.Channel
}

func (b *bench) startRabbitMQ(ctx context.Context) (broker, error) {
	server, err := services.StartRabbitMQ(ctx, services.Options{})
	if err != nil {
		return nil, err
	}
	conn, err := amqp091.Dial(server.URL())
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	channel, err := conn.Channel()
	if err != nil {
		return nil, errors.Join(err, conn.Close(), server.Close())
	}
	return &rabbitMQ{server, conn, channel}, nil
}

func (r *rabbitMQ) publisher() (message.Publisher, error) {
	return amqp.NewPublisher(amqp.PublisherConfig{Config: wmamqp.NewDurableQueueConfig(r.server.URL())}, nil)
}

func (r *rabbitMQ) create(topic string) error {
	_, err := r.channel.QueueDeclare(topic, true, false, false, false, nil)
	return err
}

func (r *rabbitMQ) stored(topic string) (int, error) {
	queue, err := r.channel.QueueDeclarePassive(topic, true, false, false, false, nil)
	return queue.Messages, err
}

func (r *rabbitMQ) remove(topic string) { _, _ = r.channel.QueueDelete(topic, false, false, false) }

func (r *rabbitMQ) close() {
	_ = r.conn.Close()
	_ = r.server.Close()
}
