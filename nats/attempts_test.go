package nats

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
)

// lines counts error lines.
type lines struct {
	watermill.NopLogger
	errors int
}

func (l *lines) Error(string, error, watermill.LogFields) { l.errors++ }

// TestAttemptsAreLoggedNowAndThen: servers fail with different errors, which are not logged for each attempt, but again
// after a connection.
func TestAttemptsAreLoggedNowAndThen(t *testing.T) {
	log := &lines{}
	a := &attempts{logger: log}
	for range 3 {
		a.failed(nil, errors.New("one server is down"))
		a.failed(nil, errors.New("another server is down"))
	}
	if log.errors != 1 {
		t.Errorf("%d lines, want 1", log.errors)
	}
	a.over()
	a.failed(nil, errors.New("one server is down"))
	if log.errors != 2 {
		t.Errorf("%d lines after a connection, want 2", log.errors)
	}
}
