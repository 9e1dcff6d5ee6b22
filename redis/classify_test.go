package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// refused is the type of go-redis's errors for error replies.
type refused string

func (r refused) Error() string { return string(r) }
func (refused) RedisError()     {}

func TestClassify(t *testing.T) {
	for err, want := range map[error]forwarder.Verdict{
		io.EOF: forwarder.Unavailable,
		&net.OpError{Op: "dial", Err: errors.New("connection refused")}: forwarder.Unavailable,
		&tls.CertificateVerificationError{Err: errors.New("expired")}:   forwarder.Unavailable,
		refused("MOVED 3999 127.0.0.1:6381"):                            forwarder.Unavailable,
		errors.New("redis: connection pool timeout"):                    forwarder.Unavailable,
		errors.New("redis: all sentinels specified in configuration are unreachable: " +
			"dial tcp 127.0.0.1:26379: connect: connection refused"): forwarder.Unavailable,
		refused("OOM command not allowed when used memory > 'maxmemory'."):                forwarder.Unavailable,
		refused("READONLY You can't write against a read only replica."):                  forwarder.Unavailable,
		refused("ERR max number of clients reached"):                                      forwarder.Unavailable,
		refused("ERR Protocol error: invalid bulk length"):                                forwarder.Unknown,
		errors.New("metadata _watermill_message_uuid is reserved"):                        forwarder.Unknown,
		errors.New("OOM is not a code here"):                                              forwarder.Unknown,
		&forwarder.PublishError{Verdict: forwarder.Permanent, Err: errors.New("too big")}: forwarder.Unknown,
	} {
		if got := Classify(fmt.Errorf("cannot xadd message: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
	if Classify(nil) != forwarder.Unknown {
		t.Error("nil")
	}
}
