package trouble

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Breaker is the circuit breaker of a database in a Group: after a failure the database is skipped, for longer each
// time. It logs the first failure, and the recovery. What begins its log lines: "polling a database". It is not safe
// for concurrent use.
type Breaker struct {
	Logger watermill.LoggerAdapter
	What   string

	failures int
	until    time.Time
}

var skips = core.Backoff{Initial: time.Second, Max: time.Minute}

// Failed opens it, and returns how long it stays open.
func (b *Breaker) Failed(now time.Time, err error) (wait time.Duration) {
	b.failures++
	wait = skips.Delay(b.failures)
	b.until = now.Add(wait)
	fields := watermill.LogFields{"wait": wait.String(), "failures": b.failures}
	if b.failures == 1 {
		b.Logger.Error(b.What+" failed: the database is skipped, for longer each time", err, fields)
	} else {
		b.Logger.Debug(b.What+" still fails", fields.Add(watermill.LogFields{"err": err.Error()}))
	}
	return wait
}

// Worked closes it.
func (b *Breaker) Worked() {
	if b.failures > 0 {
		b.failures, b.until = 0, time.Time{}
		b.Logger.Info(b.What+" works again", nil)
	}
}

// Failing reports whether the last use failed.
func (b *Breaker) Failing() bool { return b.failures > 0 }

// Until returns when the database may be tried again; zero if it is not failing.
func (b *Breaker) Until() time.Time { return b.until }
