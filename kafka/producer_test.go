package kafka_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/kafka"
)

// handlers makes a mock broker respond to every produce request for the topic with this code.
func handlers(
	t *testing.T, broker *sarama.MockBroker, topic string, code sarama.KError,
) map[string]sarama.MockResponse {
	return map[string]sarama.MockResponse{
		"ApiVersionsRequest": sarama.NewMockApiVersionsResponse(t).SetApiKeys([]sarama.ApiVersionsResponseKey{
			{ApiKey: 0, MaxVersion: 8},  // Produce
			{ApiKey: 3, MaxVersion: 8},  // Metadata
			{ApiKey: 22, MaxVersion: 4}, // InitProducerId
		}),
		"MetadataRequest": sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), broker.BrokerID()).SetLeader(
			topic, 0, broker.BrokerID()),
		"InitProducerIDRequest": sarama.NewMockInitProducerIDResponse(t).SetProducerID(1),
		"ProduceRequest":        sarama.NewMockProduceResponse(t).SetError(topic, 0, code),
	}
}

// nobody returns an address without a listener.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestPublisherStartsBeforeKafka(t *testing.T) {
	const topic = "orders"
	addr := nobody(t)
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{addr}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
	for range 3 {
		err := pub.Publish(topic, message.NewMessage("1", nil))
		if err == nil || verdict(err) != unavailable {
			t.Fatalf("without Kafka: %v, %v, want unavailable", err, verdict(err))
		}
	}

	broker := sarama.NewMockBrokerAddr(t, 1, addr)
	defer broker.Close()
	broker.SetHandlerByMap(handlers(t, broker, topic, sarama.ErrNoError))
	eventually(t, "a message is published once Kafka is up", func() bool {
		return pub.Publish(topic, message.NewMessage("1", nil)) == nil
	})
}

// TestTopicThatIsMissing: the error names the topic to create.
func TestTopicThatIsMissing(t *testing.T) {
	broker := sarama.NewMockBroker(t, 1)
	defer broker.Close()
	missing := handlers(t, broker, "orders", sarama.ErrNoError)
	missing["MetadataRequest"] = sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), broker.BrokerID()).
		SetError("dead_letters", sarama.ErrUnknownTopicOrPartition)
	broker.SetHandlerByMap(missing)
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{broker.Addr()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
	err = pub.Publish("dead_letters", message.NewMessage("1", nil))
	if err == nil || verdict(err) != unavailable || !strings.Contains(err.Error(), `topic "dead_letters" does not exist`) {
		t.Errorf("%v, %v", err, verdict(err))
	}
}

// A cluster that responds but does not assign producer ids, as during its start.
func TestCloseLeavesNothing(t *testing.T) {
	broker := sarama.NewMockBroker(t, 1)
	defer broker.Close()
	noIDs := handlers(t, broker, "orders", sarama.ErrNoError)
	noIDs["InitProducerIDRequest"] = sarama.NewMockInitProducerIDResponse(t).SetError(sarama.ErrClusterAuthorizationFailed)
	broker.SetHandlerByMap(noIDs)
	ready := sarama.NewMockBroker(t, 1)
	defer ready.Close()
	ready.SetHandlerByMap(handlers(t, ready, "orders", sarama.ErrNoError))

	for name, addr := range map[string]string{
		"nothing listens": nobody(t), "no producer ids": broker.Addr(), "connected": ready.Addr(),
	} {
		for _, wait := range []bool{false, true} {
			pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{addr}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if wait {
				err := pub.Publish("orders", message.NewMessage("1", nil))
				if err != nil && verdict(err) != unavailable {
					t.Errorf("%s: %v, %v, want unavailable", name, err, verdict(err))
				}
			}
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := pub.Close(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			wg.Wait()
			eventually(t, name+": a goroutine still runs", func() bool {
				return !goroutineIn("sarama.(*client)") && !goroutineIn("sarama.(*asyncProducer)") &&
					!goroutineIn("sarama.(*syncProducer)") && !goroutineIn("kafka.(*producer)")
			})
		}
	}
}
