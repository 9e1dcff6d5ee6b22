package nats

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// TestSilence: which results start a silence, end it, and are irrelevant.
func TestSilence(t *testing.T) {
	s := &stallDetector{conn: &natsgo.Conn{}, lasts: trouble.StallDetector{Limit: time.Hour}}
	lasts := func() time.Duration {
		began := s.lasts
		lasts, _ := began.Unanswered(time.Now(), time.Now())
		return lasts
	}
	s.result(time.Now().Add(-time.Minute), natsgo.ErrMaxPayload)
	if lasts() > time.Second {
		t.Error("the client's own error started it")
	}
	s.result(time.Now().Add(-time.Minute), natsgo.ErrTimeout)
	if lasts() < time.Minute {
		t.Error("an unacknowledged message did not start it")
	}
	s.result(time.Now(), natsgo.ErrMaxPayload)
	if lasts() < time.Minute {
		t.Error("the client's own error ended it")
	}
	s.result(time.Now(), nil)
	if lasts() > time.Second {
		t.Error("an acknowledgement did not end it")
	}
}
