package coordinator

import (
	"testing"
	"time"
)

// TestThrottleForgivesAStall: a single slow read among fast ones is followed by almost no rest, and so are later ones.
func TestThrottleForgivesAStall(t *testing.T) {
	var p Throttle
	for i := range 50 {
		took := time.Millisecond
		if i == 20 {
			took = 3 * time.Second
		}
		if rest := p.Rest(took); rest > 20*time.Millisecond {
			t.Errorf("%d: rests for %s after %s", i, rest, took)
		}
	}
}

// TestThrottleBoundsSlowWork: work that is always slow gets a twentieth of the time, and work that is slow less often
// gets more, but not all of it.
func TestThrottleBoundsSlowWork(t *testing.T) {
	for _, c := range []struct {
		every int
		most  float64
	}{{1, 0.05}, {2, 0.12}, {3, 0.2}} {
		var p Throttle
		var worked, rested time.Duration
		for i := range 100 * c.every {
			took := time.Millisecond
			if i%c.every == 0 {
				took = time.Second
			}
			worked += took
			rested += p.Rest(took)
		}
		if share := worked.Seconds() / (worked + rested).Seconds(); share > c.most {
			t.Errorf("slow every %d times: it takes %.0f %% of the time", c.every, 100*share)
		}
	}
}
