package core

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"time"
)

// Backoff is outbox.Backoff, which documents the fields.
type Backoff struct {
	Initial, Max time.Duration
	Func         func(n int) time.Duration
}

// WithDefaults fills in the fields that are not set.
func (b Backoff) WithDefaults(initial, limit time.Duration) Backoff {
	if b.Initial == 0 {
		b.Initial = initial
	}
	if b.Max == 0 {
		b.Max = max(limit, b.Initial)
	}
	return b
}

// Validate returns an error that names the field. Call it after WithDefaults.
func (b Backoff) Validate(field string) error {
	switch {
	case b.Initial < -1:
		return fmt.Errorf("%s.Initial is %s: use -1 for no wait", field, b.Initial)
	case b.Max < b.Initial:
		return fmt.Errorf("%s.Max is %s: it must be at least Initial, %s", field, b.Max, b.Initial)
	}
	return nil
}

// Precomputed calls Func now for the first 64 failures, so that no user code runs later. It returns a copy of b that
// uses the results, and the last one for all later failures. It returns an error that names the field if Func panics.
func (b Backoff) Precomputed(field string) (_ Backoff, err error) {
	if b.Func == nil {
		return b, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s.Func: %w", field, Panicked(p))
		}
	}()
	answers := make([]time.Duration, 64)
	for i := range answers {
		answers[i] = b.Func(i + 1)
	}
	b.Func = func(n int) time.Duration { return answers[min(max(n, 1), len(answers))-1] }
	return b, nil
}

// call returns the wait of Func, or the wait of Initial and Max if Func panics: a panic must not cause a tight retry
// loop.
func (b Backoff) call(n int) (wait time.Duration) {
	defer func() {
		if recover() != nil {
			wait = Backoff{Initial: b.Initial, Max: b.Max}.Delay(n)
		}
	}()
	return max(b.Func(n), 0)
}

// Later returns the wait before a retry that a handler requested: the requested wait, or the wait after a first failure
// if it requested none. It is never zero, because retries that are not counted would become a tight loop.
func (b Backoff) Later(wait time.Duration) time.Duration {
	if wait > 0 {
		return wait
	}
	return cmp.Or(b.Delay(1), 100*time.Millisecond)
}

// Delay returns how long to wait after the n-th failure, counted from 1.
func (b Backoff) Delay(n int) time.Duration {
	if b.Func != nil {
		return b.call(n)
	}
	if b.Initial <= 0 {
		return 0
	}
	d := b.Initial
	for i := 1; i < n && d < b.Max; i++ {
		d *= 2
	}
	d = min(d, b.Max)
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
