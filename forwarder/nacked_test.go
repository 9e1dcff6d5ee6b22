package forwarder

import (
	"errors"
	"testing"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestNackedErrorHasTheWait: what a handler asked for gets to the worker, and the cause as text alone.
func TestNackedErrorHasTheWait(t *testing.T) {
	poison := outbox.Poison(errors.New("no"))
	for _, wait := range []time.Duration{0, time.Hour} {
		err := nackedError(wait, poison)
		if !errors.Is(err, outbox.ErrNacked) || errors.Is(err, outbox.ErrPoison) {
			t.Errorf("%v decides something", err)
		}
		n, ok := err.(*nacked)
		if ok != (wait > 0) || ok && n.wait != wait {
			t.Errorf("%v has another wait than %s", err, wait)
		}
	}
	if err := nackedError(0, nil); err != outbox.ErrNacked {
		t.Errorf("without a cause it is %v", err)
	}
}
