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

// silence has the client try another server of a cluster when nothing is answered any more.
type silence struct {
	conn   *natsgo.Conn
	logger watermill.LoggerAdapter

	mu    sync.Mutex
	lasts trouble.Silence
}

// heard is told how a request ended that began at a time. Without a receiver it does nothing.
func (s *silence) heard(begun time.Time, err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, code := apiError(err); {
	case err == nil, code != 0 && code != notAvailable:
		s.lasts.Answered()
		return
	case !cutOff(err): // the client's own
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
	_ = s.conn.ForceReconnect() // it fails if it is closed
}

// notAvailable is what a server answers that knows of no leader.
const notAvailable = 10008

// cutOff says whether a server that reaches no other one may have given this error.
func cutOff(err error) bool {
	_, code := apiError(err)
	return code == notAvailable || errors.Is(err, natsgo.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) ||
		isAny(err, noStream)
}
