package nats

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// stallDetector makes the client try another server of a cluster when requests get no reply.
type stallDetector struct {
	conn   *natsgo.Conn
	logger watermill.LoggerAdapter

	mu    sync.Mutex
	lasts trouble.StallDetector
}

// result records the result of a request that began at begun.
func (s *stallDetector) result(begun time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, code := apiError(err); {
	case err == nil, code != 0 && code != notAvailable:
		s.lasts.Answered()
		return
	case !mayBeCutOff(err): // an error of the client itself
		return
	}
	silent, over := s.lasts.Unanswered(time.Now(), begun)
	if !over || len(s.conn.Servers()) < 2 || !s.conn.IsConnected() {
		return
	}
	s.lasts.TriedAnother()
	s.logger.Info("NATS does not respond: trying another server", watermill.LogFields{
		"url": address(s.conn), "silent": silent,
	})
	_ = s.conn.ForceReconnect() // fails only if the connection is closed
}

// notAvailable is the code of a server without a known leader.
const notAvailable = 10008

// mayBeCutOff reports whether the error may come from a server that cannot reach the others.
func mayBeCutOff(err error) bool {
	_, code := apiError(err)
	return code == notAvailable || errors.Is(err, natsgo.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) ||
		isAny(err, noStream)
}
