// Package breaker skips databases that failed, for longer each time.
package breaker

import (
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Breaker is the circuit breaker of one database. The zero value is closed. One goroutine at a time may use it.
type Breaker struct {
	failures int
	until    time.Time
}

var waits = core.Backoff{Initial: time.Second, Max: time.Minute}

// Failed opens it for a while.
func (b *Breaker) Failed(now time.Time) (wait time.Duration) {
	b.failures++
	wait = waits.Delay(b.failures)
	b.until = now.Add(wait)
	return wait
}

// Worked clears the failures, and reports whether there were any.
func (b *Breaker) Worked() (failed bool) {
	failed = b.failures > 0
	*b = Breaker{}
	return failed
}

// Failures returns the number of consecutive failures.
func (b *Breaker) Failures() int { return b.failures }

// Until returns when the database may be tried again: in the past if it has not failed lately.
func (b *Breaker) Until() time.Time { return b.until }

// Open reports whether the database is skipped now.
func (b *Breaker) Open(now time.Time) bool { return now.Before(b.until) }
