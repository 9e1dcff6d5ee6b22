package nats

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// TestSilence: what starts it, what ends it, and what is irrelevant.
func TestSilence(t *testing.T) {
	s := &stallDetector{conn: &natsgo.Conn{}, lasts: trouble.StallDetector{Limit: time.Hour}}
	lasts := func() time.Duration {
		began := s.lasts
		lasts, _ := began.Unanswered(time.Now(), time.Now())
		return lasts
	}
	s.result(time.Now().Add(-time.Minute), natsgo.ErrMaxPayload)
	if lasts() > time.Second {
		t.Error("an error of the client's own began it")
	}
	s.result(time.Now().Add(-time.Minute), natsgo.ErrTimeout)
	if lasts() < time.Minute {
		t.Error("an unacknowledged message did not start it")
	}
	s.result(time.Now(), natsgo.ErrMaxPayload)
	if lasts() < time.Minute {
		t.Error("an error of the client's own ended it")
	}
	s.result(time.Now(), nil)
	if lasts() > time.Second {
		t.Error("an acknowledgement did not end it")
	}
}
