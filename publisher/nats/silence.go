package nats

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
)

// silence has the client try another server of a cluster when no publish is acknowledged any more. It would stay with
// one that is cut off from the others and answers pings for as long as that lasts, and for a minute with one that is
// frozen.
type silence struct {
	conn   *natsgo.Conn
	limit  time.Duration
	logger watermill.LoggerAdapter

	mu    sync.Mutex
	since time.Time     // when the first publish began that was not acknowledged; zero = the last one was
	more  time.Duration // than limit: other servers did not acknowledge either
}

// mostSilence is how much longer than limit it stays with a server at most: they may all be alike, as where there is no
// stream.
const mostSilence = 5 * time.Minute

// heard is told how a publish ended that began at a time. Without a receiver it does nothing.
func (s *silence) heard(begun time.Time, err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, code := apiError(err); {
	case err == nil, code != 0 && code != notAvailable:
		s.since, s.more = time.Time{}, 0
		return
	case !cutOff(err): // the client's own
		return
	case s.since.IsZero():
		s.since = begun
		if last := time.Now().Add(-s.limit / 2); last.After(begun) { // of several messages the first were acknowledged
			s.since = last
		}
	}
	silent := time.Since(s.since)
	if silent < s.limit+s.more || len(s.conn.Servers()) < 2 || !s.conn.IsConnected() {
		return
	}
	s.since, s.more = time.Time{}, min(s.limit+2*s.more, mostSilence)
	s.logger.Info("NATS does not acknowledge: trying another server", watermill.LogFields{
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
