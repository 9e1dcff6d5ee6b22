package outbox

import (
	"errors"
	"testing"
)

func TestPoison(t *testing.T) {
	cause := errors.New("cause")
	if err := Poison(cause); !errors.Is(err, ErrPoison) || !errors.Is(err, cause) {
		t.Errorf("Poison changes the error: %v", err)
	}
	if Poison(nil) != nil {
		t.Error("Poison(nil) is an error")
	}
}
