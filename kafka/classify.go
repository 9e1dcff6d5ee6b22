package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/IBM/sarama"
	"github.com/eapache/go-resiliency/breaker"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

var unavailable = []error{
	outbox.ErrClosed, forwarder.ErrPublishTimeout,
	context.Canceled, context.DeadlineExceeded,
	io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	breaker.ErrBreakerOpen,

	sarama.ErrOutOfBrokers, sarama.ErrBrokerNotFound, sarama.ErrNotConnected, sarama.ErrAlreadyConnected,
	sarama.ErrClosedClient, sarama.ErrShuttingDown, sarama.ErrControllerNotAvailable,
	sarama.ErrIncompleteResponse, sarama.ErrProducerRetryBufferOverflow,

	// The cluster is in motion, overloaded or broken.
	sarama.ErrUnknownTopicOrPartition, sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition,
	sarama.ErrRequestTimedOut, sarama.ErrBrokerNotAvailable, sarama.ErrReplicaNotAvailable,
	sarama.ErrNetworkException, sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend,
	sarama.ErrNotController, sarama.ErrKafkaStorageError, sarama.ErrLogDirNotFound, sarama.ErrReassignmentInProgress,
	sarama.ErrListenerNotFound, sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch, sarama.ErrStaleBrokerEpoch,
	sarama.ErrStaleControllerEpochCode, sarama.ErrOffsetNotAvailable, sarama.ErrOperationNotAttempted,
	sarama.ErrPreferredLeaderNotAvailable, sarama.ErrEligibleLeadersNotAvailable, sarama.ErrThrottlingQuotaExceeded,
	sarama.ErrConsumerCoordinatorNotAvailable, sarama.ErrOffsetsLoadInProgress, sarama.ErrNotCoordinatorForConsumer,
	sarama.ErrInvalidReplicationFactor, // a topic that is made by its first message, while too few brokers live

	// Authentication, and what we may do.
	sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrGroupAuthorizationFailed,
	sarama.ErrTransactionalIDAuthorizationFailed, sarama.ErrSASLAuthenticationFailed,
	sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState, sarama.ErrSecurityDisabled,
	sarama.ErrDelegationTokenAuthDisabled, sarama.ErrDelegationTokenNotFound, sarama.ErrDelegationTokenOwnerMismatch,
	sarama.ErrDelegationTokenRequestNotAllowed, sarama.ErrDelegationTokenAuthorizationFailed,
	sarama.ErrDelegationTokenExpired,

	// The settings do not fit the broker, whatever the message.
	sarama.ErrUnsupportedVersion, sarama.ErrUnsupportedCompressionType, sarama.ErrInvalidRequiredAcks,

	// The broker cannot match a message with those before it, as after a failed batch. sarama starts a new
	// epoch, and the next try succeeds.
	sarama.ErrOutOfOrderSequenceNumber, sarama.ErrDuplicateSequenceNumber, sarama.ErrUnknownProducerID,
	sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidProducerIDMapping, sarama.ErrProducerFenced,
	sarama.ErrConcurrentTransactions, sarama.ErrTransactionCoordinatorFenced,
}

var permanent = []error{ErrRefused, outbox.ErrInvalidMessage, sarama.ErrInvalidTopic}

// refusals are given to a whole batch for what may be the fault of one of its messages.
var refusals = []error{
	sarama.ErrMessageSizeTooLarge, sarama.ErrMessageSetSizeTooLarge,
	sarama.ErrInvalidRecord, sarama.ErrInvalidMessage,
}

// Classify returns the verdict on an error of any watermill-kafka publisher; docs/start/kafka.md lists them. The errors
// of a Publisher carry it. It looks through wrapping and is safe for concurrent use.
func Classify(err error) forwarder.Verdict {
	// ProducerErrors does not unwrap.
	var several sarama.ProducerErrors
	if errors.As(err, &several) && len(several) > 0 {
		verdict := Classify(several[0])
		for _, one := range several[1:] {
			if Classify(one) != verdict {
				return forwarder.Unknown
			}
		}
		return verdict
	}

	var netErr net.Error
	var certErr *tls.CertificateVerificationError
	switch {
	case isAny(err, unavailable), errors.As(err, &netErr), errors.As(err, &certErr):
		return forwarder.Unavailable
	case errors.Is(err, errUnorderedKey): // of all such messages: none is at fault
		return forwarder.Unavailable
	case isAny(err, permanent), isClientOversize(err):
		return forwarder.Permanent
	}
	return forwarder.Unknown
}

// isClientOversize recognises sarama's refusal of a message over Producer.MaxMessageBytes. It has no type of
// its own, and other configuration errors hit every message alike: those must not kill any.
func isClientOversize(err error) bool {
	var ce sarama.ConfigurationError
	return errors.As(err, &ce) && strings.Contains(string(ce), "Producer.MaxMessageBytes")
}

func isAny(err error, targets []error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
