package forwarder

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff is a waiting time that doubles with every attempt, up to a limit, with a jitter of a fifth
// either way so that what failed together does not come back together.
type Backoff struct {
	Initial time.Duration // after the first failure
	Max     time.Duration // the limit
}

// Delay returns how long to wait after the n-th failure, n counting from 1.
func (b Backoff) Delay(n int) time.Duration {
	d := b.Initial
	for i := 1; i < n && d < b.Max; i++ {
		d *= 2
	}
	d = min(d, b.Max)
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

func (b Backoff) orDefault(initial, limit time.Duration) Backoff {
	if b.Initial == 0 {
		b.Initial = initial
	}
	if b.Max == 0 {
		b.Max = max(limit, b.Initial)
	}
	return b
}

func (b Backoff) validate(field string) error {
	if b.Initial < 0 || b.Max < b.Initial {
		return fmt.Errorf("%s is {%s %s}: both must be positive and Initial at most Max", field, b.Initial, b.Max)
	}
	return nil
}
