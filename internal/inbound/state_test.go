package inbound

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/keyed"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

func TestHung(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for name, c := range map[string]struct {
		paused, returned time.Time
		want             bool
	}{
		"not paused":                   {returned: ago(time.Hour)},
		"no handler has returned":      {paused: ago(hungAfter), want: true},
		"just paused":                  {paused: ago(hungAfter - time.Minute), returned: ago(time.Hour)},
		"a handler has returned since": {paused: ago(time.Hour), returned: ago(hungAfter - time.Minute)},
		"no handler for a long time":   {paused: ago(time.Hour), returned: ago(hungAfter), want: true},
	} {
		w := keyed.New[int](keyed.Limits{Records: 1}, 0)
		if got := Reason(Pause{c.paused, c.returned}, w, true) == meter.PausedByHungHandlers; got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestPauseNamesTheCause: the log line of a paused partition shows why its oldest message fails.
func TestPauseNamesTheCause(t *testing.T) {
	for want, cause := range map[string]error{
		"no such table": errors.New("no such table"), "middleware.ErrorHandler": nil,
	} {
		w := keyed.New[error](keyed.Limits{Records: 1}, 0)
		w.Add(0, []byte("k"), 1, cause)
		w.Hold(w.Start(false), time.Now(), time.Now())
		log := watermill.NewCaptureLogger()
		Describe(meter.PartitionState{}, w, func(err error) error { return err }, 0, Pause{Since: time.Now()}, true,
			"offset",
			&trouble.RateLimit{}, log)
		lines := log.Captured()[watermill.ErrorLogLevel]
		if len(lines) != 1 || !strings.Contains(lines[0].Err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, lines)
		}
	}
}
