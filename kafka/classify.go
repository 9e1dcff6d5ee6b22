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

	// The cluster is changing, overloaded or broken.
	sarama.ErrUnknownTopicOrPartition, sarama.ErrLeaderNotAvailable, sarama.ErrNotLeaderForPartition,
	sarama.ErrRequestTimedOut, sarama.ErrBrokerNotAvailable, sarama.ErrReplicaNotAvailable,
	sarama.ErrNetworkException, sarama.ErrNotEnoughReplicas, sarama.ErrNotEnoughReplicasAfterAppend,
	sarama.ErrNotController, sarama.ErrKafkaStorageError, sarama.ErrLogDirNotFound, sarama.ErrReassignmentInProgress,
	sarama.ErrListenerNotFound, sarama.ErrFencedLeaderEpoch, sarama.ErrUnknownLeaderEpoch, sarama.ErrStaleBrokerEpoch,
	sarama.ErrStaleControllerEpochCode, sarama.ErrOffsetNotAvailable, sarama.ErrOperationNotAttempted,
	sarama.ErrPreferredLeaderNotAvailable, sarama.ErrEligibleLeadersNotAvailable, sarama.ErrThrottlingQuotaExceeded,
	sarama.ErrConsumerCoordinatorNotAvailable, sarama.ErrOffsetsLoadInProgress, sarama.ErrNotCoordinatorForConsumer,
	sarama.ErrInvalidReplicationFactor, // an auto-created topic while too few brokers are alive

	// Authentication and permissions.
	sarama.ErrTopicAuthorizationFailed, sarama.ErrClusterAuthorizationFailed, sarama.ErrGroupAuthorizationFailed,
	sarama.ErrTransactionalIDAuthorizationFailed, sarama.ErrSASLAuthenticationFailed,
	sarama.ErrUnsupportedSASLMechanism, sarama.ErrIllegalSASLState, sarama.ErrSecurityDisabled,
	sarama.ErrDelegationTokenAuthDisabled, sarama.ErrDelegationTokenNotFound, sarama.ErrDelegationTokenOwnerMismatch,
	sarama.ErrDelegationTokenRequestNotAllowed, sarama.ErrDelegationTokenAuthorizationFailed,
	sarama.ErrDelegationTokenExpired,

	// The settings do not suit the broker; the message is not at fault.
	sarama.ErrUnsupportedVersion, sarama.ErrUnsupportedCompressionType, sarama.ErrInvalidRequiredAcks,

	// The broker cannot order a message after the previous ones, for example after a failed batch. sarama starts a new
	// epoch, and the next attempt succeeds.
	sarama.ErrOutOfOrderSequenceNumber, sarama.ErrDuplicateSequenceNumber, sarama.ErrUnknownProducerID,
	sarama.ErrInvalidProducerEpoch, sarama.ErrInvalidProducerIDMapping, sarama.ErrProducerFenced,
	sarama.ErrConcurrentTransactions, sarama.ErrTransactionCoordinatorFenced,
}

var permanent = []error{errRefused, outbox.ErrInvalidMessage, sarama.ErrInvalidTopic}

// refusals are errors of a whole batch, although a single message may be at fault.
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
	case errors.Is(err, errUnorderedKey): // every such message fails, so none is at fault
		return forwarder.Unavailable
	case isAny(err, permanent), isClientOversize(err):
		return forwarder.Permanent
	}
	return forwarder.Unknown
}

// isClientOversize recognises sarama's refusal of a message over Producer.MaxMessageBytes. The error does not have its
// own type, and other configuration errors, which fail every message, must not make messages dead.
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
