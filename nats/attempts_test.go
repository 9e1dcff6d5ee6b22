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

// TestAttemptsAreSaidNowAndThen: with several servers each attempt has a different error, which is not logged again
// each time. After a connection it is.
func TestAttemptsAreSaidNowAndThen(t *testing.T) {
	log := &lines{}
	a := &attempts{logger: log}
	for range 3 {
		a.tell(nil, errors.New("one is away"))
		a.tell(nil, errors.New("another one is away"))
	}
	if log.errors != 1 {
		t.Errorf("%d lines instead of 1", log.errors)
	}
	a.over()
	a.tell(nil, errors.New("one is away"))
	if log.errors != 2 {
		t.Errorf("%d lines after there was a connection, instead of 2", log.errors)
	}
}
