// Package breaker leaves alone what has failed, for longer each time.
package breaker

import (
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Breaker is that of one database. The zero value is closed. It is for one goroutine at a time.
type Breaker struct {
	failures int
	until    time.Time
}

var waits = core.Backoff{Initial: time.Second, Max: time.Minute}

// Failed leaves it alone for a while.
func (b *Breaker) Failed(now time.Time) (wait time.Duration) {
	b.failures++
	wait = waits.Delay(b.failures)
	b.until = now.Add(wait)
	return wait
}

// Worked forgets failures, and says whether there were any.
func (b *Breaker) Worked() (failed bool) {
	failed = b.failures > 0
	*b = Breaker{}
	return failed
}

// Failures returns how many there were in a row.
func (b *Breaker) Failures() int { return b.failures }

// Until returns when it may be tried again: in the past if it has not failed, or for long.
func (b *Breaker) Until() time.Time { return b.until }

// Open says whether it is to be left alone now.
func (b *Breaker) Open(now time.Time) bool { return now.Before(b.until) }
