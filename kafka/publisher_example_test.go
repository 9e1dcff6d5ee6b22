package kafka_test

import (
	"log"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/kafka"
)

func ExampleNewPublisher() {
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{"localhost:9092"},
		Configure: func(c *sarama.Config) error {
			c.ClientID = "orders"
			c.Producer.Compression = sarama.CompressionZSTD
			return nil
		},
	}, watermill.NewStdLogger(false, false))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()

	// Pass pub to forwarder.New, which uses the verdicts of its errors.
}
