package nats_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/nats"
)

const (
	unknown     = forwarder.Unknown
	retry       = forwarder.Retry
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
	api := func(status, code int) error {
		return &natsgo.APIError{Code: status, ErrorCode: natsgo.ErrorCode(code)}
	}
	newAPI := func(status, code int) error {
		return &jetstream.APIError{Code: status, ErrorCode: jetstream.ErrorCode(code)}
	}
	tests := []struct {
		err  error
		want forwarder.Verdict
	}{
		{errors.New("something else"), unknown},
		{api(400, 10071), retry}, // wrong last sequence
		{api(400, 10070), retry},
		{api(400, 10164), retry},
		{api(400, 10003), unknown}, // bad request
		{newAPI(400, 10071), retry},

		{natsgo.ErrMaxPayload, permanent},
		{natsgo.ErrBadSubject, permanent},
		{natsgo.ErrBadHeaderMsg, permanent},
		{api(400, 10054), permanent},
		{newAPI(400, 10054), permanent},
		{api(400, 10097), permanent},

		{outbox.ErrInvalidMessage, permanent},
		{outbox.ErrClosed, unavailable},
		{forwarder.ErrPublishTimeout, unavailable},
		{context.DeadlineExceeded, unavailable},
		{context.Canceled, unavailable},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, unavailable},
		{natsgo.ErrNoServers, unavailable},
		{natsgo.ErrConnectionClosed, unavailable},
		{natsgo.ErrConnectionReconnecting, unavailable},
		{natsgo.ErrDisconnected, unavailable},
		{natsgo.ErrReconnectBufExceeded, unavailable},
		{natsgo.ErrHeadersNotSupported, unavailable},
		{natsgo.ErrTimeout, unavailable},
		{natsgo.ErrNoResponders, unavailable},
		{natsgo.ErrNoStreamResponse, unavailable},
		{natsgo.ErrStreamNotFound, unavailable},
		{natsgo.ErrJetStreamNotEnabled, unavailable},
		{natsgo.ErrJetStreamNotEnabledForAccount, unavailable},
		{natsgo.ErrAuthorization, unavailable},
		{natsgo.ErrInvalidStreamName, unavailable},
		{jetstream.ErrNoStreamResponse, unavailable},
		{jetstream.ErrStreamNotFound, unavailable},
		{api(503, 10077), unavailable}, // store failed: full with discard new
		{api(503, 10008), unavailable},
		{api(503, 10023), unavailable},
		{api(500, 10047), unavailable},
		{api(400, 10002), unavailable},
		{api(400, 10060), unavailable},
		{api(400, 10109), unavailable},
		{api(409, 10158), unavailable},
		{api(429, 10167), unavailable},
		{newAPI(503, 10077), unavailable},
	}
	wraps := map[string]func(error) error{
		"bare": func(err error) error { return err },
		"fmt":  func(err error) error { return fmt.Errorf("publish: %w", err) },
		"join": func(err error) error { return errors.Join(errors.New("other"), err) },
	}
	for _, tt := range tests {
		for name, wrap := range wraps {
			if got := nats.Classify(wrap(tt.err)); got != tt.want {
				t.Errorf("%s: %v (%T): got %v, want %v", name, tt.err, tt.err, got, tt.want)
			}
		}
	}
}

// refusing is a publisher whose server refuses messages.
type refusing struct {
	message.Publisher
	err error
}

func (r refusing) Publish(string, ...*message.Message) error { return r.err }

// TestAMessageThatExpectsAnotherStreamIsAtFault: unless its publisher expects that stream for all messages.
func TestAMessageThatExpectsAnotherStreamIsAtFault(t *testing.T) {
	pub := nats.NewPublisherTo(refusing{err: &natsgo.APIError{Code: 400, ErrorCode: 10060}})
	plain, asks, copies := message.NewMessage("1", nil), message.NewMessage("2", nil), message.NewMessage("3", nil)
	nats.SetHeader(asks, natsgo.ExpectedStreamHdr, "OTHER")
	copies.Metadata.Set(natsgo.ExpectedStreamHdr, "OTHER")
	for _, tt := range []struct {
		msg  *message.Message
		want forwarder.Verdict
	}{{plain, unavailable}, {asks, retry}, {copies, retry}} {
		if err := pub.Publish("topic", tt.msg); verdict(err) != tt.want {
			t.Errorf("message %s: %v, want %v", tt.msg.UUID, verdict(err), tt.want)
		}
	}
}
