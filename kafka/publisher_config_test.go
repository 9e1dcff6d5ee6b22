package kafka_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/IBM/sarama"

	"github.com/millrace-go/watermill-outbox/kafka"
)

func TestSaramaConfigIsValid(t *testing.T) {
	c := kafka.SafeSettings()
	if err := kafka.ValidateSarama(c); err != nil {
		t.Fatal(err)
	}
	if c.Net.ReadTimeout <= c.Producer.Timeout {
		t.Errorf("the client gives up after %v, before the broker does after %v", c.Net.ReadTimeout, c.Producer.Timeout)
	}
	if c.Metadata.Timeout == 0 {
		t.Error("a metadata request has no timeout")
	}
	if !c.Producer.Idempotent {
		t.Error("sarama's own retries could write a message twice")
	}
	c.Producer.Idempotent, c.Net.MaxOpenRequests = false, 5
	if err := kafka.ValidateSarama(c); err != nil {
		t.Errorf("without idempotence nothing is lost: %v", err)
	}
	if c == kafka.SafeSettings() {
		t.Error("two calls share one config")
	}
}

func TestNewPublisherRefusesUnsafeConfig(t *testing.T) {
	tests := map[string]struct {
		change func(*sarama.Config)
		field  string
	}{
		"acks from the leader only": {func(c *sarama.Config) {
			c.Producer.RequiredAcks = sarama.WaitForLocal
		}, "Producer.RequiredAcks"},
		"no acks": {func(c *sarama.Config) {
			c.Producer.RequiredAcks = sarama.NoResponse
		}, "Producer.RequiredAcks"},
		"idempotent, many requests": {func(c *sarama.Config) { c.Net.MaxOpenRequests = 5 }, "Net.MaxOpenRequests"},
		"transactional":             {func(c *sarama.Config) { c.Producer.Transaction.ID = "tx" }, "Producer.Transaction.ID"},
		"no successes": {func(c *sarama.Config) {
			c.Producer.Return.Successes = false
		}, "Producer.Return.Successes"},
		"no errors":      {func(c *sarama.Config) { c.Producer.Return.Errors = false }, "Producer.Return.Errors"},
		"no partitioner": {func(c *sarama.Config) { c.Producer.Partitioner = nil }, "Producer.Partitioner"},
		"random partitioner": {func(c *sarama.Config) {
			c.Producer.Partitioner = sarama.NewRandomPartitioner
		}, "Producer.Partitioner"},
		"round robin": {func(c *sarama.Config) {
			c.Producer.Partitioner = sarama.NewRoundRobinPartitioner
		}, "Producer.Partitioner"},
		"sarama's own checks":   {func(c *sarama.Config) { c.Net.DialTimeout = 0 }, "Net.DialTimeout"},
		"sarama's metadata too": {func(c *sarama.Config) { c.Metadata.Retry.Max = -1 }, "Metadata.Retry.Max"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := kafka.NewPublisher(kafka.PublisherConfig{
				Brokers: []string{"127.0.0.1:1"}, Configure: func(c *sarama.Config) error {
					tt.change(c)
					return nil
				},
			}, nil)
			if err == nil || !strings.Contains(err.Error(), tt.field) {
				t.Fatalf("got %v, want an error naming %s", err, tt.field)
			}
		})
	}
}

func TestValidateSaramaAcceptsKeyPartitioners(t *testing.T) {
	for name, p := range map[string]sarama.PartitionerConstructor{
		"hash":      sarama.NewHashPartitioner,
		"reference": sarama.NewReferenceHashPartitioner,
		"crc":       sarama.NewConsistentCRCHashPartitioner,
		"murmur2":   sarama.NewMurmur2Partitioner,
		"manual":    sarama.NewManualPartitioner,
	} {
		c := kafka.SafeSettings()
		c.Producer.Partitioner = p
		if err := kafka.ValidateSarama(c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewPublisherNeedsBrokers(t *testing.T) {
	for _, brokers := range [][]string{
		nil, {""}, {"localhost"}, {"localhost:9092", "other"}, {"ann:canary@localhost:9092"},
		{"localhost:9092", "canary@localhost:9092"},
	} {
		_, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers}, nil)
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("it quotes a password: %v", err)
		}
		if err == nil || !strings.Contains(err.Error(), "PublisherConfig.Brokers") {
			t.Errorf("%q: got %v, want an error naming Brokers", brokers, err)
		}
	}
}

func TestNewPublisherReturnsTheErrorOfConfigure(t *testing.T) {
	want := errors.New("no certificate")
	_, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{"127.0.0.1:1"}, Configure: func(*sarama.Config) error { return want },
	}, nil)
	if !errors.Is(err, want) || !strings.Contains(err.Error(), "PublisherConfig.Configure") {
		t.Fatalf("got %v", err)
	}
}
