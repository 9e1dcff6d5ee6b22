package kafka

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
)

// silentClient is a fake whose requests for metadata fail after some time, as if a broker did not respond.
type silentClient struct {
	sarama.Client
	requests int
	err      error
}

func (c *silentClient) RefreshMetadata(...string) error {
	c.requests++
	time.Sleep(15 * time.Second)
	return c.err
}

// TestMetadataAreNotRequestedForEachMessage that waits for a broker which does not respond.
func TestMetadataAreNotRequestedForEachMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &silentClient{err: sarama.ErrOutOfBrokers}
		r := &refresher{Client: client, failures: map[string]failure{}}
		ask := func(topic string, want error, requests int) {
			t.Helper()
			if err := r.RefreshMetadata(topic); !errors.Is(err, want) || client.requests != requests {
				t.Fatalf("%s: %v after %d requests, want %v after %d", topic, err, client.requests, want, requests)
			}
		}
		for range 64 {
			ask("orders", sarama.ErrOutOfBrokers, 1)
		}
		ask("payments", sarama.ErrOutOfBrokers, 2)
		time.Sleep(connectPause)
		ask("orders", sarama.ErrOutOfBrokers, 3)
		client.err = nil
		time.Sleep(connectPause)
		ask("orders", nil, 4)
		ask("orders", nil, 5)
	})
}
