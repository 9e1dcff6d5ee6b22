package coordinator

import (
	"testing"
	"time"
)

// TestThrottleForgivesAStall: after a single slow read among fast ones, the throttle hardly rests, then and later.
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

// TestThrottleBoundsSlowWork: work that is always slow gets 5% of the time. Work that is sometimes slow gets more, but
// not all of it.
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
			t.Errorf("slow every %d times: work takes %.0f%% of the time", c.every, 100*share)
		}
	}
}
