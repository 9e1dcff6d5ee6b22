package main

import (
	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/examples/demo"
	"github.com/millrace-go/watermill-outbox/nats"
)

func newSubscriber(at demo.Addresses, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	return wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL:              at.Broker,
		NatsOptions:      nats.Options(), // reconnect forever
		SubscribersCount: 8,              // orders handled concurrently
		QueueGroupPrefix: at.Consumer,
		JetStream:        wmnats.JetStreamConfig{DurablePrefix: at.Consumer}, // it exists: see Provision
	}, logger)
}

func newPublisher(at demo.Addresses, logger watermill.LoggerAdapter) (message.Publisher, error) {
	return nats.NewPublisher(nats.PublisherConfig{URL: at.Broker}, logger)
}
