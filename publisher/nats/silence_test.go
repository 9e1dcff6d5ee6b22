package nats

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
)

// TestSilence: what begins it, what ends it, and what says nothing of the server.
func TestSilence(t *testing.T) {
	s := &silence{conn: &natsgo.Conn{}, limit: time.Hour, more: time.Hour}
	s.heard(time.Now(), natsgo.ErrMaxPayload)
	if !s.since.IsZero() {
		t.Error("an error of the client's own began it")
	}
	begun := time.Now()
	s.heard(begun, natsgo.ErrTimeout)
	if !s.since.Equal(begun) {
		t.Errorf("it lasts since %s, want %s", s.since, begun)
	}
	s.heard(time.Now(), natsgo.ErrMaxPayload)
	if !s.since.Equal(begun) || s.more == 0 {
		t.Error("an error of the client's own ended it")
	}
	s.heard(time.Now(), nil)
	if !s.since.IsZero() || s.more != 0 {
		t.Error("an acknowledgement did not end it")
	}
	s.heard(time.Now().Add(-10*time.Hour), natsgo.ErrTimeout)
	if silent := time.Since(s.since); silent > s.limit {
		t.Errorf("it lasts for %s, though the first messages of the call may have been acknowledged", silent)
	}
}
