package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/IBM/sarama"
	"github.com/eapache/go-resiliency/breaker"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/kafka"
)

const (
	unknown     = forwarder.Unknown
	unavailable = forwarder.Unavailable
	permanent   = forwarder.Permanent
)

// verdict returns the verdict that an error carries.
func verdict(err error) forwarder.Verdict {
	var judged *forwarder.PublishError
	if !errors.As(err, &judged) {
		return -1
	}
	return judged.Verdict
}

func TestClassify(t *testing.T) {
	oversize := sarama.ConfigurationError("Attempt to produce message larger than configured Producer.MaxMessageBytes: " +
		"9 > 5")
	refused := fmt.Errorf("%w: %w", kafka.ErrRefused, sarama.ErrMessageSizeTooLarge)
	tests := []struct {
		err  error
		want forwarder.Verdict
	}{
		{errors.New("something else"), unknown},
		{sarama.ConfigurationError("Producing headers requires Kafka at least v0.11"), unknown},

		// It is unknown which message of the batch is at fault.
		{sarama.ErrMessageSizeTooLarge, unknown},
		{sarama.ErrMessageSetSizeTooLarge, unknown},
		{sarama.ErrInvalidRecord, unknown},
		{sarama.ErrInvalidMessage, unknown},
		{sarama.PacketEncodingError{Info: "too long"}, unknown},

		{refused, permanent},
		{oversize, permanent},
		{outbox.ErrInvalidMessage, permanent},
		{sarama.ErrInvalidTopic, permanent},

		{outbox.ErrClosed, unavailable},
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
	if got := kafka.Classify(mixed); got != unknown {
		t.Errorf("mixed: got %v, want unknown", got)
	}
}

// The verdict on every code that a broker may return. When sarama adds codes, add them here.
func TestClassifyKnowsEveryCode(t *testing.T) {
	codes := map[forwarder.Verdict][]sarama.KError{
		permanent: {17}, // invalid topic
		unavailable: {
			3, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 19, 20, 38, 41, 55, 56, 57, 60, 72, 74, 75, 77, 78, 80, 83, 89, // the cluster
			21, 35, 76, // unsuitable settings
			29, 30, 31, 33, 34, 53, 54, 58, 61, 62, 63, 64, 65, 66, // authentication and permissions
			45, 46, 47, 49, 51, 52, 59, 90, // the state of the producer
		},
		unknown: {
			-1, 32, 42, 43, 44, 48, // maybe the message's fault
			2, 10, 18, 87, // one message of the batch
			1, 4, 12, 22, 23, 24, 25, 26, 27, 28, 68, 69, 70, 71, 79, 81, 82, 86, 88, // consumers and their groups
			36, 37, 39, 40, 50, 67, 73, 84, 85, 95, // administration
		},
	}
	want := map[sarama.KError]forwarder.Verdict{}
	for verdict, all := range codes {
		for _, code := range all {
			if other, twice := want[code]; twice {
				t.Errorf("%d is %v and %v", code, other, verdict)
			}
			want[code] = verdict
		}
	}
	for code := sarama.KError(-1); code < 1000; code++ {
		verdict, listed := want[code]
		known := code != sarama.ErrNoError && !strings.HasPrefix(code.Error(), "Unknown error")
		switch {
		case known && !listed:
			t.Errorf("%d (%v) has no verdict", code, code)
		case kafka.Classify(code) != verdict:
			t.Errorf("%d (%v): %v, want %v", code, code, kafka.Classify(code), verdict)
		}
	}
}
