// Package redis classifies errors of watermill-redisstream's publisher for the forwarder.
//
//	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, logger)
//	fwd, err := forwarder.New(db, forwarder.WithVerdicts(pub, redis.Classify), forwarder.Config{}, logger)
//
// It does not import a Redis client. docs/start/rabbitmq.md has the settings of Redis under which a published message
// is safe.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// unavailable holds the error codes, the first words of errors, with which a server refuses every message.
var unavailable = []string{
	"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "NOREPLICAS", "OOM", "MISCONF", "BUSY",
	"NOAUTH", "NOPERM", "WRONGPASS", "WRONGTYPE", "MOVED", "ASK",
}

// client holds errors of go-redis, which this package does not import.
var client = []string{
	"redis: client is closed", "redis: connection pool timeout", "redis: connection pool exhausted",
	// The errors of dialing follow as text.
	"redis: all sentinels specified in configuration are unreachable",
}

// Classify returns the verdict on an error of watermill-redisstream's publisher: Unavailable if Redis is unreachable,
// does not respond in time, or refuses every message, for example because it is full or a replica; otherwise Unknown.
// It looks through wrapping and is safe for concurrent use.
func Classify(err error) forwarder.Verdict {
	var netErr net.Error
	var certErr *tls.CertificateVerificationError
	var server interface {
		error
		RedisError() // implemented by go-redis's Error
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.As(err, &netErr), errors.As(err, &certErr),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, forwarder.ErrPublishTimeout):
		return forwarder.Unavailable
	case errors.As(err, &server):
		if code, _, _ := strings.Cut(server.Error(), " "); slices.Contains(unavailable, code) ||
			server.Error() == "ERR max number of clients reached" {
			return forwarder.Unavailable
		}
	case err != nil && slices.ContainsFunc(client,
		func(text string) bool { return strings.Contains(err.Error(), text) }):
		return forwarder.Unavailable
	}
	return forwarder.Unknown
}
