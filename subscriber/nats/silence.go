package nats

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// heard is told how a question about the consumer ended that was asked at a time, and has the client try another server
// of a cluster when none is answered any more.
func (s *subscription) heard(conn *natsgo.Conn, asked time.Time, err error) {
	switch {
	case errors.Is(err, context.Canceled):
		return
	case !cutOff(err):
		s.silence.Answered()
		return
	}
	silent, over := s.silence.Unanswered(time.Now(), asked)
	if !over || len(conn.Servers()) < 2 || !conn.IsConnected() {
		return
	}
	s.silence.TriedAnother()
	s.logger.Info("NATS does not answer: trying another server", watermill.LogFields{
		"server": conn.ConnectedServerName(), "silent": silent,
	})
	_ = conn.ForceReconnect() // it fails if it is closed
}

// notAvailable is what a server answers that knows of no leader.
const notAvailable = 10008

// cutOff says whether a server that reaches no other one may have given this error.
func cutOff(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == notAvailable || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, natsgo.ErrTimeout) || errors.Is(err, natsgo.ErrNoResponders) ||
		errors.Is(err, jetstream.ErrNoStreamResponse)
}
