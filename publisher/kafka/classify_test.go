package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/IBM/sarama"
	"github.com/eapache/go-resiliency/breaker"

	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/publisher/kafka"
)

const (
	rejected    = forwarder.Rejected
	unavailable = forwarder.Unavailable
	permanent   = forwarder.Permanent
)

func TestClassify(t *testing.T) {
	oversize := sarama.ConfigurationError("Attempt to produce message larger than configured Producer.MaxMessageBytes: 9 > 5")
	refused := fmt.Errorf("%w: %w", kafka.ErrRefused, sarama.ErrMessageSizeTooLarge)
	tests := []struct {
		err  error
		want forwarder.Verdict
	}{
		{errors.New("something else"), rejected},
		{sarama.ErrUnknown, rejected},
		{sarama.ErrInvalidRequest, rejected},
		{sarama.ErrInvalidTimestamp, rejected},
		{sarama.ConfigurationError("Producing headers requires Kafka at least v0.11"), rejected},

		// Nobody knows which message of the batch.
		{sarama.ErrMessageSizeTooLarge, rejected},
		{sarama.ErrMessageSetSizeTooLarge, rejected},
		{sarama.ErrInvalidRecord, rejected},
		{sarama.ErrInvalidMessage, rejected},
		{sarama.PacketEncodingError{Info: "too long"}, rejected},

		{refused, permanent},
		{oversize, permanent},
		{sarama.ErrInvalidTopic, permanent},

		{kafka.ErrClosed, unavailable},
		{forwarder.ErrPublishTimeout, unavailable},
		{context.DeadlineExceeded, unavailable},
		{context.Canceled, unavailable},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, unavailable},
		{net.ErrClosed, unavailable},
		{breaker.ErrBreakerOpen, unavailable},
		{sarama.ErrOutOfBrokers, unavailable},
		{sarama.Wrap(sarama.ErrOutOfBrokers, syscall.ECONNREFUSED), unavailable},
		{sarama.ErrNotConnected, unavailable},
		{sarama.ErrClosedClient, unavailable},
		{sarama.ErrShuttingDown, unavailable},
		{sarama.ErrUnknownTopicOrPartition, unavailable},
		{sarama.ErrLeaderNotAvailable, unavailable},
		{sarama.ErrNotLeaderForPartition, unavailable},
		{sarama.ErrRequestTimedOut, unavailable},
		{sarama.ErrNotEnoughReplicas, unavailable},
		{sarama.ErrNotEnoughReplicasAfterAppend, unavailable},
		{sarama.ErrTopicAuthorizationFailed, unavailable},
		{sarama.ErrClusterAuthorizationFailed, unavailable},
		{sarama.ErrSASLAuthenticationFailed, unavailable},
		{sarama.ErrThrottlingQuotaExceeded, unavailable},
		{sarama.ErrOutOfOrderSequenceNumber, unavailable},
		{sarama.ErrUnknownProducerID, unavailable},
	}
	wraps := map[string]func(error) error{
		"bare":           func(err error) error { return err },
		"fmt":            func(err error) error { return fmt.Errorf("publish: %w", err) },
		"join":           func(err error) error { return errors.Join(errors.New("other"), err) },
		"producer error": func(err error) error { return &sarama.ProducerError{Msg: &sarama.ProducerMessage{}, Err: err} },
		"producer errors": func(err error) error {
			return fmt.Errorf("publish: %w", sarama.ProducerErrors{{Msg: &sarama.ProducerMessage{}, Err: err}})
		},
	}
	for _, tt := range tests {
		for name, wrap := range wraps {
			if got := kafka.Classify(wrap(tt.err)); got != tt.want {
				t.Errorf("%s: %v: got %v, want %v", name, tt.err, got, tt.want)
			}
		}
	}
}

func TestClassifySeveral(t *testing.T) {
	one := func(err error) *sarama.ProducerError {
		return &sarama.ProducerError{Msg: &sarama.ProducerMessage{}, Err: err}
	}
	same := sarama.ProducerErrors{one(sarama.ErrInvalidTopic), one(sarama.ErrInvalidTopic)}
	if got := kafka.Classify(same); got != permanent {
		t.Errorf("all permanent: got %v", got)
	}
	mixed := sarama.ProducerErrors{one(sarama.ErrInvalidTopic), one(sarama.ErrNotConnected)}
	if got := kafka.Classify(mixed); got != rejected {
		t.Errorf("mixed: got %v, want rejected", got)
	}
}
