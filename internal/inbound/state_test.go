package inbound

import (
	"testing"
	"time"
)

func TestHung(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, c := range map[string]struct {
		paused, returned time.Time
		want             bool
	}{
		"it is read":                {returned: ago(time.Hour)},
		"none has returned":         {paused: ago(hungAfter), want: true},
		"it is paused since lately": {paused: ago(hungAfter - 1), returned: ago(time.Hour)},
		"one has returned since":    {paused: ago(time.Hour), returned: ago(hungAfter - 1)},
		"none for long":             {paused: ago(time.Hour), returned: ago(hungAfter), want: true},
	} {
		if got := Hung(c.paused, c.returned, now); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
