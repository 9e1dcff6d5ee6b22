package main

import (
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/examples/demo"
	"github.com/millrace-go/watermill-outbox/publisher/kafka"
	inbound "github.com/millrace-go/watermill-outbox/subscriber/kafka"
)

func newSubscriber(at demo.Addresses, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	reading := inbound.SaramaConfig()
	reading.Consumer.Group.Session.Timeout = 6 * time.Second // how long a member that is gone keeps its partitions
	return inbound.NewSubscriber(inbound.SubscriberConfig{SubscriberConfig: wmkafka.SubscriberConfig{
		Brokers:               strings.Split(at.Broker, ","),
		ConsumerGroup:         at.Consumer,
		Unmarshaler:           wmkafka.DefaultMarshaler{},
		OverwriteSaramaConfig: reading,
	}}, logger)
}

func newPublisher(at demo.Addresses, logger watermill.LoggerAdapter) (message.Publisher, error) {
	return kafka.NewPublisher(kafka.PublisherConfig{Brokers: strings.Split(at.Broker, ",")}, logger)
}
