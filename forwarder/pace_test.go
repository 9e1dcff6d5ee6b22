package forwarder

import (
	"testing"
	"time"
)

// TestPace: what is slow rests for twenty times as long, and what was slow once does not.
func TestPace(t *testing.T) {
	var p pace
	for i, c := range []struct{ took, rest time.Duration }{
		{3 * time.Second, 0},
		{time.Millisecond, 20 * time.Millisecond},
		{3 * time.Second, 20 * time.Millisecond},
		{2 * time.Second, 40 * time.Second},
		{2 * time.Second, 40 * time.Second},
		{time.Millisecond, 20 * time.Millisecond},
	} {
		if rest := p.rest(c.took); rest != c.rest {
			t.Errorf("%d: rests for %s after %s, and not for %s", i, rest, c.took, c.rest)
		}
	}
}
