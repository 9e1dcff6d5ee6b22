package kafka_test

import (
	"fmt"
	"log"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
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

	// Hand pub to forwarder.New, which asks it what its errors mean.
}

// A publisher that you build yourself, with the safe settings and one bad message's neighbours protected.
func ExampleWrap() {
	own, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
		Brokers:               []string{"localhost:9092"},
		Marshaler:             kafka.Marshaler{},
		OverwriteSaramaConfig: kafka.DefaultSaramaPublisherConfig(),
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	pub, err := kafka.Wrap(own, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
}

// The ordering key of the outbox is the key in Kafka, so that messages of one key are in one partition. NewPublisher
// takes a Marshaler by itself.
func ExampleMarshaler() {
	msg := message.NewMessage("0190-1", []byte("paid"))
	outbox.SetKey(msg, "order/42")
	record, err := kafka.Marshaler{}.Marshal("orders", msg)
	if err != nil {
		log.Fatal(err)
	}
	key, err := record.Key.Encode()
	fmt.Println(record.Topic, string(key), err)
	// Output: orders order/42 <nil>
}
