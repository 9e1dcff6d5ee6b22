package main

import (
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/examples/demo"
	"github.com/millrace-go/watermill-outbox/kafka"
)

func newSubscriber(at demo.Addresses, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	reading := kafka.DefaultSaramaSubscriberConfig()
	reading.Consumer.Group.Session.Timeout = 6 * time.Second // how long a vanished member keeps its partitions
	return kafka.NewSubscriber(kafka.SubscriberConfig{SubscriberConfig: wmkafka.SubscriberConfig{
		Brokers:               strings.Split(at.Broker, ","),
		ConsumerGroup:         at.Consumer,
		Unmarshaler:           wmkafka.DefaultMarshaler{},
		OverwriteSaramaConfig: reading,
	}}, logger)
}

func newPublisher(at demo.Addresses, logger watermill.LoggerAdapter) (message.Publisher, error) {
	return kafka.NewPublisher(kafka.PublisherConfig{Brokers: strings.Split(at.Broker, ",")}, logger)
}
