package inbound

import (
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/keyed"
	"github.com/millrace-go/watermill-outbox/observe"
)

func TestHung(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for name, c := range map[string]struct {
		paused, returned time.Time
		want             bool
	}{
		"it is read":                {returned: ago(time.Hour)},
		"none has returned":         {paused: ago(hungAfter), want: true},
		"it is paused since lately": {paused: ago(hungAfter - time.Minute), returned: ago(time.Hour)},
		"one has returned since":    {paused: ago(time.Hour), returned: ago(hungAfter - time.Minute)},
		"none for long":             {paused: ago(time.Hour), returned: ago(hungAfter), want: true},
	} {
		w := keyed.New[int](keyed.Limits{Records: 1}, 0)
		if got := Reason(Pause{c.paused, c.returned}, w, true) == observe.PausedByHungHandlers; got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
