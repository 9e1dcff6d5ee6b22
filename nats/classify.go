package nats

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/header"
)

// Errors of the client if no stream has the subject, or if the server has no JetStream.
var noStream = []error{
	natsgo.ErrNoResponders, natsgo.ErrNoStreamResponse, natsgo.ErrNoMatchingStream, jetstream.ErrNoStreamResponse,
}

// The client returns it while it has no connection, although the text is about a buffer.
var noConnection = []error{natsgo.ErrReconnectBufExceeded}

var unavailable = []error{
	outbox.ErrClosed, forwarder.ErrPublishTimeout, context.Canceled, context.DeadlineExceeded,
	io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,

	natsgo.ErrConnectionClosed, natsgo.ErrConnectionDraining, natsgo.ErrConnectionReconnecting,
	natsgo.ErrDisconnected, natsgo.ErrInvalidConnection, natsgo.ErrNoServers, natsgo.ErrNoInfoReceived,
	natsgo.ErrReconnectBufExceeded, natsgo.ErrStaleConnection, natsgo.ErrTimeout,
	natsgo.ErrMaxConnectionsExceeded, natsgo.ErrMaxAccountConnectionsExceeded,

	// Before the first connection the client assumes that headers are unsupported.
	natsgo.ErrHeadersNotSupported,

	natsgo.ErrAuthorization, natsgo.ErrAuthExpired, natsgo.ErrAuthRevoked, natsgo.ErrAccountAuthExpired,
	natsgo.ErrPermissionViolation, natsgo.ErrSecureConnRequired, natsgo.ErrSecureConnWanted, natsgo.ErrTLS,

	natsgo.ErrNoResponders, natsgo.ErrNoStreamResponse, natsgo.ErrNoMatchingStream, natsgo.ErrInvalidJSAck,
	natsgo.ErrAsyncPublishTimeout, natsgo.ErrTooManyStalledMsgs,
	jetstream.ErrNoStreamResponse, jetstream.ErrInvalidJSAck, jetstream.ErrAsyncPublishTimeout,
	jetstream.ErrTooManyStalledMsgs,

	// AutoProvision derives the stream's name from the topic.
	natsgo.ErrInvalidStreamName,
}

var permanent = []error{
	outbox.ErrInvalidMessage, natsgo.ErrMaxPayload, natsgo.ErrBadSubject, natsgo.ErrBadHeaderMsg,
}

// Codes below 500 in nats-server's errors.json that blame the request although the message is not at fault.
var unavailableCodes = []int{
	10002, // resource limits exceeded for account
	10027, // maximum number of streams reached
	10058, // stream name already in use with a different configuration
	10059, // stream not found
	otherStream,
	10065, // subjects overlap with an existing stream
	10109, // invalid operation on sealed stream
	10120, // no JetStream default or applicable tiered limit present
	10158, // duplicate message id is in process
}

var permanentCodes = []int{
	10054, // message size exceeds maximum allowed
	10097, // header size exceeds maximum allowed of 64k
	10165, // invalid per-message TTL
}

// retryCodes mean that the message expects a state that the stream may reach later.
var retryCodes = []int{
	10070, // wrong last message id
	10071, // wrong last sequence
	10164, // wrong last sequence
}

// otherStream means that the header Nats-Expected-Stream names another stream.
const otherStream = 10060

const tooManyRequests = 429

// Classify returns the verdict on an error of any watermill-nats publisher; docs/start/nats.md lists them. The errors
// of a Publisher carry it, or Retry if the message's own metadata expect another stream. It looks through wrapping and
// is safe for concurrent use.
func Classify(err error) forwarder.Verdict {
	var netErr net.Error
	switch {
	case isAny(err, unavailable), errors.As(err, &netErr):
		return forwarder.Unavailable
	case isAny(err, permanent):
		return forwarder.Permanent
	}

	status, code := apiError(err)
	switch {
	case slices.Contains(permanentCodes, code):
		return forwarder.Permanent
	case slices.Contains(unavailableCodes, code), status >= 500, status == tooManyRequests:
		return forwarder.Unavailable
	case slices.Contains(retryCodes, code):
		return forwarder.Retry
	}
	return forwarder.Unknown
}

// wantsOtherStream reports whether the error concerns a message that names a stream other than its subject's, by
// SetHeader or, with another marshaler, in its metadata. If the publisher names that stream for all its messages, no
// message is at fault.
func wantsOtherStream(err error, msgs []*message.Message) bool {
	if _, code := apiError(err); code != otherStream {
		return false
	}
	return slices.ContainsFunc(msgs, func(msg *message.Message) bool {
		requested, _, _ := header.Take(msg)
		return requested[natsgo.ExpectedStreamHdr] != "" || msg.Metadata[natsgo.ExpectedStreamHdr] != ""
	})
}

// apiError returns the HTTP-like status and the code of a JetStream error from either of nats.go's clients.
func apiError(err error) (status, code int) {
	var legacy *natsgo.APIError
	if errors.As(err, &legacy) {
		return legacy.Code, int(legacy.ErrorCode)
	}
	var current *jetstream.APIError
	if errors.As(err, &current) {
		return current.Code, int(current.ErrorCode)
	}
	return 0, 0
}

func isAny(err error, targets []error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
